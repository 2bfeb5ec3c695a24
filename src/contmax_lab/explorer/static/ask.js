// Questions to the server, and its complaints.

/** The answer as JSON; throws an Error whose message is a sentence for people. */
export async function ask(address, question, type = "application/json") {
  const body = type === "application/json" && question !== undefined ? JSON.stringify(question) : question;
  const options = question === undefined ? {} : { method: "POST", body, headers: { "content-type": type } };
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("The server does not answer. Is contmax explore still running?");
  }
  const answer = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(sentence(answer.error));
  return answer;
}

function sentence(words) {
  const text = String(words ?? "Something went wrong").trim();
  return `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

/** Asks again only when the last answer is there, and then with the newest question: answers never come late. */
export function latest(work) {
  let running = false, next = null;
  return async function run(...given) {
    if (running) {
      next = given;
      return;
    }
    running = true;
    try {
      await work(...given);
    } finally {
      running = false;
      if (next) {
        const waiting = next;
        next = null;
        run(...waiting);
      }
    }
  };
}

/** Fills a list of models of one kind; returns whether there are any. */
export async function listModels(select, kind) {
  select.replaceChildren(new Option("looking for models …", ""));
  const models = (await ask("/api/models")).filter(model => model.kind === kind);
  select.replaceChildren(...models.map(({ name, title }) => new Option(title, name)));
  return models.length > 0;
}
