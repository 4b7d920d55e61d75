"""Models that train in threads of one process: as if each were alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import checkmate.torch
from checkmate.errors import CheckmateError
from checkmate.torch.memory.measure import measure, measure_pass
from checkmate.torch.pytorch import internals
from checkmate.torch.pytorch.random import draw, draw_again, empty_state
from torch_models import Case, Decoder, ResidualNet, identical, state, twin

CPU = torch.device("cpu")
MB = 1_000_000

# There PyTorch traces with a stand-in for the GPU that goes away with the thread that first traced: with any backend, the next
# trace in another thread crashes the interpreter.
pytestmark = pytest.mark.skipif(
    torch.__version__ < (2, 12) and torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="PyTorch 2.11 for CUDA, without a GPU, crashes when a thread that compiled has ended",
)


def small_cases() -> list[Case]:
    """Without dropout: threads share the generator of random numbers, so who draws which is chance, also in plain training."""
    torch.manual_seed(0)
    images, labels, ids = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,)), torch.randint(0, 50, (4, 32))
    net, decoder = ResidualNet(blocks=2), Decoder(blocks=1, dropout=0.0)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return [
        Case("residual", net, (images, labels), lambda loss: loss),
        Case("decoder", decoder, (ids, ids.flip(1)), lambda loss: loss),
    ]


def sgd(which: Case, model: nn.Module, started: Callable[[], object] = lambda: None) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    started()
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        losses.append(which.step(model))
        optimizer.step()
    return [*losses, *state(model)]


@pytest.mark.parametrize(("by_name", "rounds"), [pytest.param(False, 1, marks=pytest.mark.slow), (True, 1)])
def test_two_models_train_at_the_same_time(by_name: bool, rounds: int) -> None:
    cases = small_cases()
    options = {"budget": "80%", "gap": 0.02, "time_limit": 1}
    expected = [sgd(which, twin(which.model)) for which in cases]
    for _ in range(rounds):
        models = [twin(which.model) for which in cases]
        if by_name:
            for model in models:
                model.compile(backend="checkmate", options=options, **internals.isolation())
        else:
            for model in models:
                checkmate.torch.compile(model, **options)  # type: ignore[arg-type]  # one dict of all kinds
        together = threading.Barrier(2)
        with ThreadPoolExecutor(2) as threads:
            running = [threads.submit(sgd, which, model, together.wait) for which, model in zip(cases, models, strict=True)]
            found = [future.result() for future in running]
        for one, other in zip(found, expected, strict=True):
            assert identical(one, other)
        for model in models:
            # PyTorch may compile a model twice where threads look at its cache at the same time.
            plans = checkmate.torch.plans(model)
            assert plans
            for plan in plans:
                assert plan.schedule.num_recomputations > 0
                assert plan.outside < 1000  # nothing of the other model
                assert (plan.measured_peak or 0) <= plan.predicted_peak <= plan.budget
            assert any(plan.measured_peak for plan in plans)


def test_a_compiled_model_is_called_while_another_thread_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8)
    busy, called = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin().exp().sum()

    ready = checkmate.torch.compile(Slow(), budget="1GiB")
    ready(x.clone().requires_grad_()).backward()
    decomposition = internals._dropout_backward

    def waits(*arguments: Any) -> Any:  # called while the backward pass of dropout is traced
        busy.set()
        assert called.wait(60)
        return decomposition(*arguments)

    monkeypatch.setattr(internals, "_dropout_backward", waits)

    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5).sum()

    other = checkmate.torch.compile(Dropping(), budget="1GiB")
    with ThreadPoolExecutor(1) as thread:
        tracing = thread.submit(lambda: other(x.clone().requires_grad_()))
        try:
            assert busy.wait(60)
            assert torch.equal(ready(x.clone().requires_grad_()), x.sin().exp().sum())
        finally:
            called.set()
        tracing.result()


def test_random_ops_of_two_threads_do_not_mix() -> None:
    """What is drawn again is what was drawn first, although another thread wants to draw at the worst moments."""
    began = threading.Event()

    def slow() -> Tensor:
        began.set()
        time.sleep(0.2)  # for the other thread, which must wait for its turn
        return torch.rand(3)

    def other(op: Callable[[], Tensor]) -> Tensor:
        assert began.wait(60)
        began.clear()
        return draw(None, CPU, op, (), {})  # type: ignore[no-any-return]  # whatever the op returns

    torch.manual_seed(5)
    expected = [torch.rand(3), torch.rand(3), torch.rand(3)]
    torch.manual_seed(5)
    saved = empty_state(CPU)
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(other, lambda: torch.rand(3))
        first = draw(saved, CPU, slow, (), {})
        found = [first, second.result()]
        third = thread.submit(other, lambda: torch.rand(3))
        again = draw_again(saved, CPU, slow, (), {})
        found.append(third.result())
    assert torch.equal(again, first)
    assert identical(found, expected)


def test_other_threads_do_not_count() -> None:
    wait, over = threading.Barrier(2), threading.Event()

    def other() -> None:
        held = torch.empty(8 * MB)
        wait.wait()  # the measurement is about to begin
        wait.wait()  # it has begun
        del held
        kept = torch.empty(4 * MB)
        wait.wait()
        assert over.wait(60)
        del kept

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(other)
        wait.wait()
        with measure("cpu") as measured:
            wait.wait()
            wait.wait()
            own = torch.empty(MB // 4)
        over.set()
        running.result()
    assert measured.peak - measured.base == own.nbytes


def test_one_measurement_at_a_time() -> None:
    """Passes wait for each other; nobody waits for a block of the user's, whose end may be far away."""
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        given = [torch.empty(MB)]
        with measure_pass(CPU, given) as measured:
            inside.set()
            assert over.wait(60)
            own = torch.empty(MB // 4)
            given.clear()
            own = torch.cat([own, own])  # while the inputs are gone already
        assert (measured.base, measured.peak) == (4 * MB, 5 * MB)

    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(hold)
        assert inside.wait(60)
        inside.clear()
        second = threads.submit(hold)
        assert not inside.wait(0.2)  # it waits
        over.set()
        running.result()
        second.result()

        with measure("cpu"), pytest.raises(CheckmateError, match="another profiler or measurement"):
            threads.submit(hold).result()
        with (
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
            pytest.raises(CheckmateError, match="another profiler or measurement"),
        ):
            threads.submit(hold).result()
