// A program with the types that openapi-typescript makes of the document: says as JSON what the gateway has answered.
import createClient from "openapi-fetch";
import type { components, paths } from "./warren.js";

type Schemas = components["schemas"];
type Create = paths["/sessions"]["post"]["requestBody"];
type Start = paths["/sessions/{session_id}/messages"]["post"]["requestBody"];

declare const process: { argv: string[] };
const [address, bodies] = process.argv.slice(2);
const [session, turn]: [
    NonNullable<Create>["content"]["application/json"],
    NonNullable<Start>["content"]["application/json"],
] = JSON.parse(bodies);
const client = createClient<paths>({ baseUrl: address });

// The compiler checks that options have these names and types.
const options: typeof turn = {
    prompt: "typed",
    temperature: 0.5,
    budget: { max_steps: 3 },
    mode: "queue",
    attachments: [{ sha256: "0".repeat(64) }],
};
void options;

async function* followed(session_id: string): AsyncGenerator<Schemas["Envelope"]> {
    const { data } = await client.GET("/sessions/{session_id}/events", {
        params: { path: { session_id }, query: { after_seq: 0 } },
        parseAs: "stream",
    });
    let text = "";
    for await (const piece of data!.pipeThrough(new TextDecoderStream())) {
        text += piece;
        const events = text.split("\n\n");
        text = events.pop()!;
        for (const event of events) {
            const line = event.split("\n").find((each) => each.startsWith("data: "));
            if (line !== undefined) yield JSON.parse(line.slice("data: ".length));
        }
    }
}

const created = await client.POST("/sessions", { body: session });
const session_id = created.data!.session_id;
const answered = await client.POST("/sessions/{session_id}/messages", { params: { path: { session_id } }, body: turn });
const events: string[] = [];
for await (const { event } of followed(session_id)) {
    events.push(event.type);
    if (events.filter((type) => type === "run_completed").length === 2) break;
}
const listed = await client.GET("/sessions", { params: { query: { limit: 5, labels: {} } } });
const refused = await client.GET("/sessions/{session_id}", { params: { path: { session_id: "nobody" } } });
console.log(
    JSON.stringify({
        created: created.data!.text,
        answered: answered.data!.text,
        events,
        listed: listed.data!.sessions.map((each) => each.session_id),
        refused: refused.error!.code,
    }),
);
