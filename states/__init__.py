"""One module per work state: read the context, do the work through ports, return a Step.

No SQL and no subprocess here. Handlers run outside any transaction and may be run again
after a crash at any point, so they leave nothing behind except through the Step.
"""

from __future__ import annotations

from collections.abc import Callable

from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import State
from croq_fsm.ports import Ports
from states import baseline, decide, ideate, implement, init, measure, profile, store

Handler = Callable[[Session, Ports], Step]

HANDLERS: dict[State, Handler] = {
    State.INIT: init.run,
    State.BASELINE: baseline.run,
    State.PROFILE: profile.run,
    State.IDEATE: ideate.run,
    State.IMPLEMENT: implement.run,
    State.MEASURE: measure.run,
    State.DECIDE: decide.run,
    State.STORE: store.run,
}
