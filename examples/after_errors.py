"""What a program does about each error: a class for each code, and a cause for what differs within one."""

import trio

from warren import Budget, Config, ErrorCode, RuntimeService, WarrenError, open_supervisor
from warren import errors as err
from warren.testing import ScriptedModel, call, fail, say


def advice(error: WarrenError) -> str:  # noqa: C901, PLR0911, PLR0912 - one answer for each class
    """Return what to do about an error. The code and the cause are for programs, and the message for a person."""
    match error:
        case err.StoreError(cause="outcome_unknown") | err.AgentError(cause="outcome_unknown" | "connection_lost"):
            return "send it again under the same idempotency key: it may have happened"
        case err.SessionBusyError():
            return 'wait for its turn, or send the prompt with mode="queue"'
        case err.SessionNotFoundError(cause=cause):
            found: err.SessionNotFoundCause | None = cause
            return "restore it" if found == "archived" else "forget its id"
        case err.SessionNotRunningError():
            return "nothing: its turn has ended"
        case err.InvalidParamsError(path=path):
            return f"mend the call at {path}"
        case err.PermissionDeniedError():
            return "use a token with the scope"
        case err.CapacityExceededError(cause=cause):
            bound: err.CapacityCause | None = cause
            return f"come back in {error.details.get('retry_after', 1)} s: {bound or 'running_turns'}"
        case err.BudgetExhaustedError(cause=cause):
            spent: err.BudgetCause | None = cause
            return f"raise the budget of {spent}, or end here"
        case err.ProviderError(cause=cause, retryable=retryable):
            reason: err.ProviderCause | None = cause
            return f"try again later: {reason}" if retryable else f"look at the request and the key: {reason}"
        case err.PersistenceDisabledError() | err.CompactionDisabledError() | err.MemoryDisabledError():
            return "switch the capability on in the config"
        case err.LeasedError():
            return "ask the process that has the session"
        case err.StoreError(cause=cause):
            problem: err.StoreCause | None = cause
            return f"see to the store: {problem}"
        case err.AgentError(cause=cause):
            end: err.AgentCause | None = cause
            return "nothing: somebody has stopped it" if end == "cancelled" else f"read the log: {end}"
        case _:
            return f"read docs/errors.md: {error.code}"


async def meet(service: RuntimeService) -> None:
    """Meet some of them."""
    for prompt, budget in (("Fail!", None), ("Dig!", Budget(max_steps=1)), (" ", None)):
        try:
            await service.create_session(prompt, budget=budget)
        except WarrenError as error:
            print(f"{error.code}: {advice(error)}")
    try:
        await service.history("0198c0de-0000-7000-8000-000000000000")
    except WarrenError as error:
        known = error.code is ErrorCode.SESSION_NOT_FOUND  # for programs that keep codes, not classes
        print(f"{error.code}: {advice(error)}" if known else error)


async def main() -> None:
    """Run it on a model that fails for one prompt, and asks for a tool for all others."""
    model = ScriptedModel([[fail("the key is wrong", cause="forbidden", times=1), call("dig")], say("Dug.")])
    async with open_supervisor(Config(model="gardener"), providers={"gardener": model}) as service:
        await meet(service)


if __name__ == "__main__":
    trio.run(main)
