"""A study that several processes, on any machines, work on at once."""

import time
from collections.abc import Sequence
from typing import Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from contmax_lab.errors import LabError
from contmax_lab.training import seed_for

# Trials that count: those that ended, be it by diverging, and those that somebody works on.
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
_COUNTED = (*_ENDED, TrialState.RUNNING)
# Attributes of a trial: a sign of life that its process renews, and the number of the trial that it goes on with.
_ALIVE, _ORIGIN = "alive", "goes on with"
# Seconds between two signs of life, between two looks at the database, and after which a silent process is dead.
_SIGN, _LOOK, _DEAD = 10.0, 2.0, 60.0


class SharedStudy:
    """Hands out trials until enough are done, whoever does them; takes those of dead processes over.

    A process gives a sign of life of each of its trials. Others look whether the sign changes, on their own clock, so
    that the clocks of machines need not agree. Everything is stored in attributes that any storage of optuna has.

    Args:
        study: the same for all.
        trials: wanted in all.
        seed: of the recipe.

    `is_complete` says whether as many were done as are wanted when a trial was asked for in vain.
    """

    def __init__(self, study: optuna.Study, trials: int, seed: int) -> None:
        self.study = study
        self.is_complete = False
        self._wanted, self._seed = trials, seed
        self._signs: dict[int, tuple[str, float]] = {}
        self._own: dict[int, optuna.Trial] = {}
        self._signed = self._looked = -float("inf")

    def ended(self) -> int:
        """How many trials are done, diverged ones included."""
        return len(self.study.get_trials(deepcopy=False, states=_ENDED))

    def take(self) -> optuna.Trial | None:
        """A trial to work on, or None if enough are done or under way, perhaps elsewhere."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return None
        if self._counted() >= self._wanted:
            self._looked = now
            self.is_complete = self.ended() >= self._wanted
            self._release_dead(now)
            return None
        trial = self.study.ask()
        # Another process may have asked in the same moment; of those that are too many the last ones give way.
        if self._counted(below=trial.number) >= self._wanted:
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        # Seeded by the number, so that neither two processes nor a search that goes on draw the same again.
        seed = seed_for(self._seed, "trial", trial.number) % 2**32
        self.study.sampler = optuna.samplers.TPESampler(seed=seed)
        self._own[trial.number] = trial
        self._sign([trial])
        return trial

    def keep_alive(self) -> None:
        """Give a sign of life of the trials under way, if it is time for one."""
        if time.monotonic() - self._signed > _SIGN:
            self._signed = time.monotonic()
            self._sign(list(self._own.values()))

    def tell(self, number: int, value: float | None) -> None:
        """A trial is over; its value, or None if it diverged."""
        trial = self._own.pop(number)
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self.study.tell(trial, value, state=state, skip_if_finished=True)
        self._looked = -float("inf")

    def fail(self, number: int) -> None:
        """A trial cannot be trained; it does not count."""
        self.study.tell(self._own.pop(number), state=TrialState.FAIL, skip_if_finished=True)

    def give_back(self) -> None:
        """The trials under way were stopped, and have saved: whoever comes next goes on with them."""
        for number in list(self._own):
            del self._own[number]
            self._release(self.study.get_trials(deepcopy=False)[number])

    def _counted(self, below: float = float("inf")) -> int:
        counted = self.study.get_trials(deepcopy=False, states=_COUNTED)
        return sum(trial.number < below for trial in counted)

    def _sign(self, trials: Sequence[optuna.Trial]) -> None:
        for trial in trials:
            trial.set_user_attr(_ALIVE, f"{time.time():.1f}")

    def _release_dead(self, now: float) -> None:
        """Look at the signs of others, and take their trials from those that have been silent for too long."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number in self._own:
                continue
            sign = str(trial.user_attrs.get(_ALIVE))
            seen, since = self._signs.get(trial.number, (None, now))
            if seen != sign:
                self._signs[trial.number] = sign, now
            elif now - since > _DEAD:
                self._release(trial)

    def _release(self, trial: FrozenTrial) -> None:
        """Fail a trial, and queue its choices; whoever takes them goes on in its folder."""
        try:
            self.study.tell(trial.number, state=TrialState.FAIL)
        except ValueError:
            return  # somebody else was quicker
        self.study.enqueue_trial(trial.params, user_attrs={_ORIGIN: origin(trial)})


def origin(trial: FrozenTrial | optuna.Trial) -> int:
    """The number of the trial that this one goes on with, or its own: that of its folder."""
    return int(trial.user_attrs.get(_ORIGIN, trial.number))


def open_study(name: str, storage: str, direction: Literal["minimize", "maximize"]) -> optuna.Study:
    """The study of that name, which is made if there is none.

    Raises:
        LabError: if the database cannot be used.
    """
    # What goes wrong in a trial is told by us, in one line, not by optuna with a traceback.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    attempts = 3
    for attempt in range(1, attempts + 1):
        try:
            return optuna.create_study(study_name=name, storage=storage, direction=direction, load_if_exists=True)
        except Exception as error:  # every database has errors of its own
            if attempt == attempts:
                raise unusable(storage, error) from None
            # Two processes that begin at the same moment both make the tables, and one of them fails.
            time.sleep(0.5)
    raise AssertionError("not reached")


def unusable(storage: str, error: Exception) -> LabError:
    """A complaint about the database."""
    return LabError(f"cannot use the database {_without_password(storage)}: {' '.join(str(error).split())[:200]}")


def _without_password(storage: str) -> str:
    scheme, separator, rest = storage.partition("://")
    access, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{access.partition(':')[0]}{at}{place}"
