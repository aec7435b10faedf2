"""The table of all calls: every surface, client and node is made from it."""

from collections.abc import Mapping
from typing import Any, Final

from warren.calls.base import Call
from warren.calls.operators import (
    AuditRequest,
    CheckStoreRequest,
    DrainRequest,
    NodesRequest,
    TenantsRequest,
    UsageRequest,
)
from warren.calls.reading import AttachmentRequest, ContextViewRequest, ForgetRequest, HistoryRequest, SearchRequest
from warren.calls.sessions import (
    ArchiveRequest,
    DeleteRequest,
    ForkRequest,
    LabelRequest,
    ListRequest,
    ReadRequest,
    ResumeRequest,
)
from warren.calls.turns import (
    ApproveRequest,
    CompactRequest,
    ContextRequest,
    InputsRequest,
    InterruptRequest,
    PeerMessage,
    PeersRequest,
    SessionCall,
    TurnCall,
    WithdrawRequest,
)

CALLS: Final[Mapping[str, type[Call[Any]]]] = {
    each.facts.name: each
    for each in (
        SessionCall,
        ResumeRequest,
        ReadRequest,
        ListRequest,
        HistoryRequest,
        AttachmentRequest,
        ContextViewRequest,
        ArchiveRequest,
        DeleteRequest,
        CompactRequest,
        ForkRequest,
        LabelRequest,
        ContextRequest,
        InputsRequest,
        WithdrawRequest,
        TurnCall,
        InterruptRequest,
        ApproveRequest,
        PeerMessage,
        PeersRequest,
        SearchRequest,
        ForgetRequest,
        AuditRequest,
        UsageRequest,
        NodesRequest,
        DrainRequest,
        TenantsRequest,
        CheckStoreRequest,
    )
}
"""Every class of calls by its name on the wire, in the order of the documentation."""
