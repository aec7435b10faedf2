"""A tour of all that a service can tell: each call that only reads, and the values that it returns."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import trio

from warren import (
    Agent,
    Config,
    File,
    Gates,
    HistoryPage,
    MemoryConfig,
    ModelOptions,
    RuntimeService,
    SessionOptions,
    SessionPage,
    SessionTemplate,
    SessionView,
    StoreConfig,
    open_supervisor,
    tool,
    views,
)
from warren.messages import UserMessage
from warren.testing import ScriptedModel, call, say

Lines = Iterator[str]


def of_sessions(page: SessionPage) -> Lines:
    """Yield a line for each session of a list."""
    summary: views.SessionSummary
    for summary in page.sessions:
        agent: views.AgentRef | None = summary.agent
        turn: views.TurnView | None = summary.turn
        doing = f"{turn.state} since {turn.since:%H:%M}" if turn else summary.last_outcome or "new"
        yield f"{summary.model}, {summary.message_count} messages, {doing}, {agent.name if agent else 'no agent'}"
    yield from of_damage(page.damaged)


def of_damage(rows: Iterable[views.DamagedRow]) -> Lines:
    """Yield a line for each row that cannot be read; everything else is there all the same."""
    for row in rows:
        yield f"damaged: {row.row}: {row.problem}"


def of_session(view: SessionView) -> Lines:
    """Yield what there is to know about one session."""
    state: views.SessionState = view.state
    spent: views.Billing = view.billing
    origin: views.Parent | None = state.parent
    children: views.ChildCount | None = state.children
    yield f"{state.message_count} messages, {spent.total_tokens} tokens, said last: {state.last_assistant_text}"
    yield f"{f'a fork at {origin.at}' if origin else 'no fork'}, {children.total if children else 0} children"
    approval: views.PendingApproval
    for approval in state.pending_approvals:
        yield f"{approval.name} waits for a person until {approval.until:%H:%M}"
    waiting: views.WaitingCall
    for waiting in state.background:
        yield f"{waiting.name} goes on in the background: {waiting.reason}"


def of_history(page: HistoryPage) -> Lines:
    """Yield a line for each message of a history, and one for each compaction."""
    entry: views.HistoryEntry
    for entry in page.messages:
        yield f"{entry.position}: {type(entry.message).__name__}"
    compaction: views.CompactionEntry
    for compaction in page.compactions:
        yield f"{compaction.messages_before} messages became {compaction.messages_after}"


def of_context(view: views.ContextView) -> Lines:
    """Yield what fills the context of the model."""
    part: views.ContextPart
    for part in view.parts:
        yield f"{part.name}: {part.tokens} tokens"
    offered: views.ContextTool
    for offered in view.tools:
        yield f"the tool {offered.name}: {offered.tokens} tokens"
    seen: views.SeenMessage
    for seen in view.messages:
        yield f"message {seen.position}: {seen.tokens} tokens"


def of_inbox(waiting: Iterable[views.Input]) -> Lines:
    """Yield a line for each input that waits."""
    for each in waiting:
        options: views.TurnOptions | None = each.options
        end: views.ChildEnd | None = each.end
        yield f"{each.kind}: {each.text} ({'with options' if options else 'as the session has it'})"
        if end is not None:
            spent: views.Expense | None = end.expense
            yield f"a child has ended, and used {spent.tokens if spent else 0} tokens"


def of_approvals(page: views.ApprovalPage) -> Lines:
    """Yield a line for each call that waits for a person, in any session."""
    approval: views.ListedApproval
    for approval in page.approvals:
        yield f"{approval.name}({approval.args}) in {approval.title or 'a new session'}"


def of_clocks(page: views.SchedulePage) -> Lines:
    """Yield a line for each schedule and each of its last runs."""
    schedule: views.ScheduleView
    for schedule in page.schedules:
        yield f"{schedule.cron or schedule.every}: {schedule.prompt}"
        ran: views.RunView
        for ran in schedule.runs:
            yield f"due {ran.due:%H:%M}: {ran.state}"


def of_triggers(page: views.TriggerPage) -> Lines:
    """Yield a line for each trigger and each call that has fired it."""
    trigger: views.TriggerView
    for trigger in page.triggers:
        yield f"{trigger.scheme}: {trigger.prompt}"
        came: views.DeliveryView
        for came in trigger.deliveries:
            yield f"came {came.at:%H:%M}: {came.state}"


def of_webhooks(page: views.WebhookPage, posts: views.WebhookDeliveryPage) -> Lines:
    """Yield a line for each webhook and each of its posts."""
    webhook: views.WebhookView
    for webhook in page.webhooks:
        yield f"{webhook.url}: {webhook.pending} wait, {webhook.dead} are given up"
    post: views.WebhookDelivery
    for post in posts.deliveries:
        yield f"{post.type}: {post.state} after {post.attempts} attempts"


def of_agents(page: views.AgentPage, details: views.AgentDetails) -> Lines:
    """Yield a line for each agent, and the versions of one."""
    agent: views.AgentView
    for agent in page.agents:
        yield f"{agent.name}: {agent.description or 'no description'}"
    spec: views.AgentSpec = details.spec
    versions: tuple[views.AgentVersion, ...] = details.versions
    yield f"{spec.name} has {len(versions)} versions; the newest is {'' if details.here else 'not '}in this process"


def of_memory(hits: Iterable[views.MemoryHit]) -> Lines:
    """Yield a line for each text that the memory has found."""
    for hit in hits:
        parts: views.ScoreParts | None = hit.parts
        yield f"remembers: {hit.content} ({'by its parts' if parts else 'as a whole'})"


def of_peers(peers: Iterable[views.PeerInfo]) -> Lines:
    """Yield a line for each session that another one can write to."""
    for peer in peers:
        yield f"{peer.name}: {'reachable' if peer.reachable else 'away'}"


def of_health(health: views.Health) -> Lines:
    """Yield a line for each part of a runtime that is on."""
    loop: views.LoopHealth | None = health.loop
    store: views.StoreHealth | None = health.store
    projector: views.ProjectorHealth | None = health.projector
    memory: views.MemoryHealth | None = health.memory
    access: views.AccessHealth | None = health.access
    files: views.FilesHealth | None = health.files
    servers: tuple[views.McpHealth, ...] = health.mcp or ()
    missing: tuple[views.ToolsHealth, ...] = health.tools or ()
    yield f"the runtime: {health.status}"
    for name, part in {
        "the loop": loop,
        "the store": store,
        "the projections": projector,
        "the memory": memory,
        "the tokens": access,
        "the files": files,
    }.items():
        yield f"{name}: {part.status if part else 'off'}"
    yield f"{len(servers)} MCP servers, {len(missing)} kinds of tools that cannot run"


def of_load(history: views.History, metrics: views.Metrics, statistics: views.RuntimeStatistics) -> Lines:
    """Yield how much there is to do."""
    samples: tuple[views.LoadSample, ...] = history.samples
    storage: views.StorageStatistics | None = statistics.storage
    yield f"{len(samples) > 0}, {statistics.live_sessions} sessions in memory, store: {storage is not None}"
    turns: views.Metric = next(each for each in metrics.metrics if each.name == "warren_turns_total")
    series: tuple[views.Series, ...] = turns.series
    yield f"{sum(each.value for each in series):.0f} turns"


def of_store(report: views.StoreReport) -> Lines:
    """Yield what an examination of the store has found."""
    file: views.FileFacts | None = report.file
    database: views.DatabaseFacts | None = report.database
    memory: views.MemoryFacts | None = report.memory
    projection: views.ProjectionFacts | None = report.projection
    holders: tuple[views.HolderFacts, ...] = report.holders
    findings: tuple[views.Finding, ...] = report.findings
    facts = file or database
    yield f"{facts.sessions if facts else 0} sessions, {len(holders)} processes, {len(findings)} findings"
    yield f"{memory.entries if memory else 0} texts, projections: {projection is not None}"


def of_operators(usage: views.UsageReport, trail: views.AuditPage, tenants: views.TenantsPage) -> Lines:
    """Yield who has done what, and what it has cost."""
    total: views.UsageSums = usage.total
    rows: tuple[views.UsageRow, ...] = usage.rows
    yield f"{total.turns} turns of {len(rows)} {usage.by}"
    tenant: views.TenantFigures
    for tenant in tenants.tenants:
        limits: views.TenantLimits | None = tenant.limits
        yield f"{tenant.tenant}: {tenant.sessions} sessions, {'limits' if limits else 'no limits'}"
    entry: views.AuditEntry
    for entry in trail.entries:
        yield f"{entry.who}: {entry.action}"


def of_nodes(nodes: Iterable[views.Node]) -> Lines:
    """Yield a line for each process that serves the store with others."""
    for node in nodes:
        load: views.NodeLoad | None = node.load
        yield f"{node.name}: {load.running_turns if load else 0} turns"


def show(lines: Lines) -> None:
    """Print lines."""
    for line in lines:
        print(line)


@tool
async def dig(where: str) -> str:
    """Dig a hole."""
    return f"a hole {where}"


CALM = SessionOptions(temperature=0.2, effort="low")
DIGGER = Agent(
    "digger",
    "Dig.",
    model=ScriptedModel([say("It is dug."), call("dig", where="here"), say("Done.")]),
    tools=[dig],
    gates=Gates(callback="ask"),
    options=CALM,
)


async def around(service: RuntimeService, session_id: str) -> None:
    """Look at everything."""
    file: views.AttachmentContent = await service.attachment(session_id, sha256=await first_file(service, session_id))
    attached: views.Attachment = file.attachment
    print(f"{attached.name}: {attached.size} bytes")
    show(of_sessions(await service.list()))
    show(of_session(await service.read(session_id)))
    show(of_history(await service.history(session_id)))
    show(of_context(await service.context(session_id)))
    show(of_inbox(await service.inputs(session_id)))
    show(of_approvals(await service.approvals()))
    show(of_clocks(await service.schedules()))
    show(of_triggers(await service.triggers()))
    webhooks: views.WebhookPage = await service.webhooks()
    show(of_webhooks(webhooks, await service.deliveries(webhooks.webhooks[0].webhook_id)))
    show(of_agents(await service.agents(), await service.agent("digger")))
    show(of_memory(await service.search_memory("hole", session_id=session_id)))
    show(of_peers(await service.peers(session_id)))


async def first_file(service: RuntimeService, session_id: str) -> str:
    """Return the hash of the file of the first prompt."""
    prompts = [each.message for each in (await service.history(session_id)).messages]
    return next(each.attachments[0].sha256 or "" for each in prompts if isinstance(each, UserMessage))


async def behind_the_scenes(service: RuntimeService) -> None:
    """Look at what operators look at."""
    can: views.Capabilities = service.capabilities()
    print(f"a store: {can.session_store}, a memory: {can.memory_store}")
    show(of_health(service.health()))
    show(of_load(service.load(), service.metrics(), service.statistics()))
    show(of_store(await service.check_store()))
    show(of_operators(await service.usage(), await service.audit(), await service.tenants()))
    show(of_nodes(await service.nodes()))
    bounds: views.TokenLimits = service.principal.limits
    print(bounds.turns_per_minute or "no limits")


async def heard(service: RuntimeService, session_id: str) -> None:
    """Read what has happened so far, and which sessions change."""
    async with service.subscribe(session_id, after_seq=0) as events:
        reader: views.EventReader = events
        async for envelope in reader:
            print(type(envelope.event).__name__)
            break
    async with service.watch() as changes:
        changed: views.ChangeReader = changes
        await service.label(session_id, title="The hole")
        async for each in changed:
            news: views.SessionChanges = each
            print(*(summary.title for summary in news.sessions))
            break


async def main() -> None:
    """Have something to look at, and look at it."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(store=StoreConfig(Path(folder)), memory=MemoryConfig(), budget=None)
        async with open_supervisor(config, agents=[DIGGER]) as service:
            plan = File(b"here", media_type="text/plain", name="plan.txt")
            first = await service.create_session("Dig a hole.", agent="digger", attachments=[plan])
            template = SessionTemplate(agent="digger", title="By the clock")
            await service.create_schedule("Dig another.", every="1d", new_session=template)
            await service.create_trigger("Something came: {body}", new_session=template)
            await service.create_webhook("https://example.org/hooks")
            await around(service, first.session_id)
            await heard(service, first.session_id)
            await behind_the_scenes(service)
    print(ModelOptions(effort="low").effort, CALM.effort)


if __name__ == "__main__":
    trio.run(main)
