"""The errors of Warren, by the name that programs import them by."""

from warren.base.errors import AgentCause as AgentCause
from warren.base.errors import AgentError as AgentError
from warren.base.errors import BudgetCause as BudgetCause
from warren.base.errors import BudgetExhaustedError as BudgetExhaustedError
from warren.base.errors import CapacityCause as CapacityCause
from warren.base.errors import CapacityExceededError as CapacityExceededError
from warren.base.errors import CompactionDisabledError as CompactionDisabledError
from warren.base.errors import ErrorCode as ErrorCode
from warren.base.errors import InvalidParamsError as InvalidParamsError
from warren.base.errors import LeasedError as LeasedError
from warren.base.errors import MemoryDisabledError as MemoryDisabledError
from warren.base.errors import PermissionDeniedError as PermissionDeniedError
from warren.base.errors import PersistenceDisabledError as PersistenceDisabledError
from warren.base.errors import ProviderCause as ProviderCause
from warren.base.errors import ProviderError as ProviderError
from warren.base.errors import SessionBusyError as SessionBusyError
from warren.base.errors import SessionNotFoundCause as SessionNotFoundCause
from warren.base.errors import SessionNotFoundError as SessionNotFoundError
from warren.base.errors import SessionNotRunningError as SessionNotRunningError
from warren.base.errors import StoreCause as StoreCause
from warren.base.errors import StoreError as StoreError
from warren.base.errors import WarrenError as WarrenError
