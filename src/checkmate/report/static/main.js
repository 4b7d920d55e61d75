// Puts the views on the page.

function start() {
  document.documentElement.classList.add("script");
  curveView();
  if (plan.length) {
    memoryView();
    scheduleView();
    cursorView();
    againView();
    layersView();
    for (const radio of document.querySelectorAll("input[name=axis]")) {
      radio.addEventListener("change", () => {
        const [from, to] = state.span.map(positionAt);
        const whole = state.span[0] === 0 && state.span[1] === axisEnd();
        state.axis = radio.value;
        state.span = whole ? [0, axisEnd()] : [edge(from), edge(to + 1)];
        redraw();
      });
    }
    byId("zoom-in").addEventListener("click", () => zoom(0.5, undefined, state.row + 0.5));
    byId("zoom-out").addEventListener("click", () => zoom(2, undefined, state.row + 0.5));
    byId("zoom-all").addEventListener("click", showAll);
    byId("to-peak").addEventListener("click", () => look(plan.peak));
  }
  themes();
  if (plan.length) look(plan.peak);
  new ResizeObserver(redraw).observe(document.body);
}

start();
