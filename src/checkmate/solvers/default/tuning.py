"""The numbers that tune the default method, in one place.

They are tuned on graphs that nothing is judged by, but for those of `SelectionNumbers` and `TailNumbers`:
`benchmarks/tuning_instances.py` writes them, and the command named at a number, run with another value, shows what the number is for.
Units of work are those of interface/work_limits.py. The figures in `benchmarks/results` are of other graphs, and judge.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..heuristics.nested_checkpointing import NESTED_NUMBERS, NestedNumbers
from ..interface.numbers import Numbers, number

_SOLVER = "python benchmarks/solver.py tuning --networks --methods auto"  # "tuning": written by benchmarks/tuning_instances.py
_TIGHT = f"{_SOLVER} --budgets 1.02x 1.1x 1.3x"
_ANY = f"{_SOLVER} --orders any"
_LARGE = "python benchmarks/solver_scale.py"
_RESNET = "python benchmarks/paper.py --sections overhead --networks resnet50 --methods auto"
_BATCH = "python benchmarks/largest_batch.py --networks resnet50"


@dataclass(frozen=True)
class GapNumbers(Numbers):
    """How wide a gap has to be for what."""

    loose: float = number(0.01, "gap", "wider: better schedules are worth more time than better bounds", _SOLVER)
    far: float = number(0.03, "gap", "wider: the next relaxations will hardly close it", _SOLVER)
    wide: float = number(
        0.1, "gap", "wider: the best schedule is no good start for a polish, and a long annealing comes before all else", _TIGHT
    )


@dataclass(frozen=True)
class RelaxationNumbers(Numbers):
    """Rounds of snapshot relaxations."""

    limit: float = number(6.0, "units of work", "of one; doubled when it was not enough to find anything", _SOLVER)
    quick: float = number(
        1.0, "units of work", "in which relaxations come before all searches, while each is solved to the end", _SOLVER
    )
    hard_ops: int = number(2000, "ops", "with more, many snapshots are too hard, however narrow the gap is", _LARGE)
    hard_share: float = number(1 / 3, "share of `limit`", "for graphs with so many ops", _LARGE, most=1.0)
    rough: float = number(0.1, "share of the gap", "while it is wide, this precision and the next round bring most", _SOLVER)
    additions: int = number(4, "snapshots", "added after a round; doubled while the bound stalls", _SOLVER, 1)
    most_additions: int = number(32, "snapshots", "of which no more are added after one round", _SOLVER, 1)
    stalled: float = number(0.5, "share of the gap asked for", "a round that raises the bound by less has stalled", _SOLVER)
    margins: tuple[float, ...] = number(
        (0.35, 0.7, 1.0, 1.3),
        "powers of the violation",
        "by which the budget is lowered: what is read off relaxations at lower budgets often fits",
        _SOLVER,
    )
    lower_limit: float = number(1.0, "units of work", "of a relaxation at a lower budget", _SOLVER)
    polish_rounds: int = number(2, "rounds", "that a schedule within the gap is improved for: they cost little", _SOLVER)
    polish_limit: float = number(1.0, "units of work", "of a relaxation in such a round", _SOLVER)


@dataclass(frozen=True)
class SelectionNumbers(Numbers):
    """Snapshots chosen one by one.

    The graphs for tuning hardly tell them apart. They are those with which ResNet50 of the paper was closed at 15%, which is judged.
    """

    candidates: int = number(4, "snapshots", "of which the best one is added", _RESNET, 1)
    loss: float = number(0.1, "share of what the new one proves", "that leaving out one beside it may cost", _RESNET, most=1.0)
    growth: float = number(4.0, "factor", "of the work of the relaxation before, that one with one more may take", _RESNET, 1)
    quick: float = number(0.3, "units of work", "below which the work does not count, and all candidates are tried", _RESNET)
    least: float = number(2.0, "units of work", "that one may always take", _RESNET)
    precision: float = number(0.03, "share of the gap asked for", "to which one is solved", _RESNET, most=1.0)
    finest: float = number(1e-5, "share of the ideal cost", "the finest such precision", _RESNET)
    share: float = number(0.1, "share of the time limit in units of work", "for all of them after one round", _RESNET, most=1.0)
    rounds: int = number(2, "rounds", "with searches that come before: they often do without", _RESNET)
    lead: float = number(
        0.5, "share of what is left to prove", "that they prove beyond the rounds where those cannot keep up", _RESNET
    )


@dataclass(frozen=True)
class ClimbNumbers(Numbers):
    """The hill climb around greedy eviction."""

    moves: int = number(50, "moves", "before the first growth", _TIGHT, 1)
    growth: int = number(2, "factor", "of the moves from round to round", _TIGHT, 1)
    loose_growth: int = number(8, "factor", "the same while the gap is loose", _TIGHT, 1)
    least: int = number(20, "moves", "in a round of a graph however large", _LARGE)
    work: float = number(2e8, "moves x ops^2", "in one round: about three seconds", _LARGE)


@dataclass(frozen=True)
class AnnealingNumbers(Numbers):
    """Simulated annealing of schedules that are known."""

    moves: int = number(10_000, "moves", "of the first run", _SOLVER, 1)
    growth: int = number(3, "factor", "from run to run", _SOLVER, 1)
    work: float = number(1e8, "moves x ops", "in one run: some seconds", _LARGE)
    fresh: int = number(4, "factor", "more moves for a run from a start that is far from any good schedule", _TIGHT, 1)
    runs: int = number(8, "runs", "that compete while the gap is loose: how well a run ends is a matter of luck", _TIGHT, 1)
    winners: int = number(2, "runs", "that go on", _TIGHT, 1)
    mild: float = number(1e-4, "share of the ideal cost", "the temperature at which these begin", _TIGHT, 1e-9)
    worth: float = number(0.9, "share of the gap", "they go on for as long as they bring the gap below it", _TIGHT, most=1.0)
    long: float = number(1.0, "units of work", "of the first of the long runs, which come while the gap is loose", _TIGHT)
    long_growth: float = number(2.0, "factor", "of that from one to the next", _TIGHT, 1)
    long_share: float = number(0.15, "share of the time limit in units of work", "for each of them at most", _TIGHT, most=1.0)
    heat: float = number(
        0.05, "share of the gap", "the temperature, in units of the ideal cost, at which they begin", _TIGHT, 1e-9
    )
    hottest: float = number(0.05, "share of the ideal cost", "that temperature at most", _TIGHT, 1e-9)


@dataclass(frozen=True)
class NestedTries(Numbers):
    """Nested checkpointing, once for each of several ways to cut the graph."""

    cuts: tuple[tuple[int, bool, float], ...] = number(
        ((25, False, 1.0), (25, False, 1.5), (50, False, 0.0), (340, False, 0.0), (25, True, 0.0), (25, False, 0.0)),
        "ops per segment, early backward ends (see `segments.cut`), what the last segment makes as a share of the capacity",
        "none is always best; the better ones come first",
        _TIGHT,
    )
    fewest: int = number(4, "segments", "of fewer nothing can be nested", _TIGHT, 1)
    most: int = number(100, "segments", "as the dynamic program grows with their third power", _LARGE, 1)
    share: float = number(0.25, "share of the time limit in units of work", "that one try may take", _TIGHT, most=1.0)
    numbers: NestedNumbers = NESTED_NUMBERS


@dataclass(frozen=True)
class PriceNumbers(Numbers):
    """Bounds from prices of memory."""

    first_share: float = number(
        0.1, "share of the time limit in units of work", "for the Lagrangian bound before the long searches", _TIGHT, most=1.0
    )
    share: float = number(0.2, "share of the time limit in units of work", "for the rest of it after them", _TIGHT, most=1.0)
    nested_cuts: tuple[tuple[int, int], ...] = number(
        ((2, 1), (1, 0), (2, 0), (4, 1)),
        "every so many of the places to cut at, the first few left out",
        "the bound from nested snapshots is tried for each, the better ones first",
        _TIGHT,
    )
    compared: int = number(2, "cuts", "of which the best is tried again with more multipliers", _TIGHT, 1)
    more_multipliers: int = number(108, "multipliers", "then", _TIGHT, 1)
    nested_share: float = number(0.4, "share of the time limit in units of work", "for all of these", _TIGHT, most=1.0)


@dataclass(frozen=True)
class TailNumbers(Numbers):
    """The tail bound. These are set with ResNet50, which is judged."""

    least: float = number(0.03, "share of the ideal cost", "that a glance must show to be computed again at the end", _BATCH)
    begins: int = number(12, "ops", "of the second half after which a tail is glanced at, before any between them", _BATCH, 2)
    near: float = number(0.95, "share of the most", "that a glance must show of the shortest tail", _BATCH, most=1.0)
    share: float = number(0.4, "share of the time limit in units of work", "for what comes before the tail", _BATCH, most=1.0)


@dataclass(frozen=True)
class NeighbourhoodNumbers(Numbers):
    """Large neighbourhood search."""

    count: int = number(48, "neighbourhoods", "that the forward phase is cut into", _SOLVER, 1)
    free: int = number(6, "neighbourhoods", "that are free at first", _SOLVER, 1)
    growth: float = number(1.5, "factor", "by which there are more after an easy program, fewer after a hard one", _SOLVER, 1)
    limit: float = number(1.0, "units of work", "of one program", _SOLVER)
    vain: int = number(8, "programs", "in a row that bring nothing are the end", _SOLVER, 1)
    gap: float = number(2e-5, "share of the ideal cost", "how close to its optimum each program is solved", _SOLVER)
    moves: int = number(10_000, "moves", "of the annealing of a schedule that breaks the budget", _SOLVER, 1)


@dataclass(frozen=True)
class LargeNumbers(Numbers):
    """The course for large graphs."""

    many_ops: int = number(2000, "ops", "graphs with more are large", _LARGE)
    too_many_ops: int = number(
        8000, "ops", "up to which the course for small graphs goes on where that for large ones ends", _LARGE
    )
    budgets: tuple[float, ...] = number(
        (1.0, 0.985, 0.97, 0.94, 0.9),
        "shares of the capacity",
        "that are rounded for: what greedy eviction adds must fit as well",
        _LARGE,
        most=1.0,
    )
    moves: int = number(1000, "moves", "of the climb", _LARGE)
    few_moves: int = number(50, "moves", "of the climb where the course for small graphs goes on", _LARGE)


@dataclass(frozen=True)
class AnyOrderNumbers(Numbers):
    """Annealing over orders."""

    order_moves: int = number(1500, "moves per op", "in the search for an order that fits as it is", _ANY)
    round_moves: int = number(2000, "moves per op", "in the first round of annealing", _ANY)
    least_moves: int = number(10_000, "moves", "in each of them, however small the graph", _ANY, 1)
    most_moves: int = number(300_000, "moves", "in each of them, however large", _ANY, 1)
    growth: float = number(1.6, "factor", "of the moves from round to round", _ANY, 1)
    given_share: float = number(0.3, "share of the time limit in units of work", "that the given order gets", _ANY, most=1.0)
    patience: int = number(3, "rounds", "in a row that bring less than `progress` are the end", _ANY, 1)
    progress: float = number(1e-5, "share of the ideal cost", "that a round should bring", _ANY)
    cut_ops: int = number(6000, "ops", "of the largest graphs with bounds from single moments", _ANY)
    cuts: int = number(8, "moments", "of which bounds are computed", _ANY, 1)
    cut_share: float = number(0.1, "share of the time limit in units of work", "for the integer program of one", _ANY, most=1.0)


@dataclass(frozen=True)
class WarmStartNumbers(Numbers):
    """The repair of a schedule that a search begins with."""

    pairs: int = number(4_000_000, "stages x values", "that greedy eviction follows", _LARGE, 1)
    few_ops: int = number(3000, "ops", "more are not annealed", _LARGE)
    moves: int = number(10_000, "moves", "of the annealing: a moment", _LARGE, 1)


@dataclass(frozen=True)
class Tuning(Numbers):
    """All numbers of the default method; each field of each part says its unit, why it is about that large, and what shows it."""

    gaps: GapNumbers = GapNumbers()
    relaxations: RelaxationNumbers = RelaxationNumbers()
    selection: SelectionNumbers = SelectionNumbers()
    climb: ClimbNumbers = ClimbNumbers()
    annealing: AnnealingNumbers = AnnealingNumbers()
    nested: NestedTries = NestedTries()
    prices: PriceNumbers = PriceNumbers()
    tails: TailNumbers = TailNumbers()
    neighbourhoods: NeighbourhoodNumbers = NeighbourhoodNumbers()
    large: LargeNumbers = LargeNumbers()
    any_order: AnyOrderNumbers = AnyOrderNumbers()
    warm_start: WarmStartNumbers = WarmStartNumbers()


TUNING = Tuning()
