// One node: goal and outcome, the frozen rubric beside its scores, the forked group, the transcript.

function nodePanel(entry, nodes, tree) {
  const { node } = entry;
  const side = [goalCard(node), rubricCard(node, tree)];
  return h("section", { class: "nodeview", id: "node", "data-node": entry.key }, h("h2", {}, `Node ${node.id}`, nodeFacts(node)),
    node.attempts.length ? forkCard(entry, tree) : null,
    h("div", { class: "columns" }, h("div", { class: "main" }, transcript(entry, nodes, tree)), h("aside", {}, side)));
}

function nodeFacts(node) {
  const parts = [node.status.replaceAll("_", " "), node.reward !== null && `reward ${number(node.reward)}`, node.advantage !== null && `advantage ${signed(node.advantage)}`];
  return h("span", { class: "chips" }, outcomeMark(node.verified), parts.filter(Boolean).map((text) => h("span", { class: "chip" }, text)));
}

function goalCard(node) {
  return h("div", { class: "card", id: "goal" }, h("h3", {}, "Goal"), h("p", { class: "said" }, node.goal ? visible(node.goal) : "The task itself; this is the root."),
    h("h3", {}, "Reported back"), node.message ? h("p", { class: "said" }, visible(node.message)) : h("p", { class: "note" }, "nothing"),
    node.error ? [h("h3", {}, "Error"), h("p", { class: "said bad" }, visible(node.error))] : null);
}

const bar = (share, kind) => h("span", { class: `bar ${kind || ""}` }, h("i", { style: { width: `${100 * Math.max(0, Math.min(1, share || 0))}%` } }));

function rubricCard(node, tree) {
  if (!node.rubric) {
    if (!node.rubric_call && !node.problems.length) return null;
    return h("div", { class: "card", id: "rubric" }, h("h3", {}, "No usable rubric"), problems(node), node.rubric_call ? rubricCall(node.rubric_call, tree) : null);
  }
  const { score } = node;
  const rows = node.rubric.criteria.map((criterion, i) => h("tr", {}, h("td", {}, h("b", {}, visible(criterion.name || "")), h("p", { class: "note" }, visible(criterion.description || ""))),
    h("td", { class: "num" }, bar(criterion.share), criterion.share === null ? "unusable" : percent(criterion.share)),
    h("td", { class: "num" }, score.answered ? [bar(score.criteria[i], "score"), number(score.criteria[i])] : "–")));
  const first = node.steps.length ? node.steps[0].order : null, call = node.rubric_call;
  return h("div", { class: "card", id: "rubric" }, h("h3", {}, "Frozen rubric"),
    call && first !== null && call.order >= 0 ? h("p", { class: "note" }, `Call ${call.order} of the tree; the node's first step was call ${first}.`) : null,
    h("table", { class: "rubric" }, h("thead", {}, h("tr", {}, h("th", {}, "criterion"), h("th", { class: "num" }, "weight"), h("th", { class: "num" }, "score"))), h("tbody", {}, rows)),
    h("p", { class: "sum" }, scoreLine(score)), problems(node),
    call ? h("details", { open: treeState.tokens }, h("summary", {}, "as the policy wrote it", call.parts.length > 1 ? [", ", h("mark", { class: `trained ${tree.objective}` }, "trained"), ` by the ${tree.objective} objective`] : null), rubricCall(call, tree)) : node.rubric.text ? h("details", {}, h("summary", {}, "as written"), h("pre", { class: "said" }, visible(node.rubric.text))) : null);
}

const problems = (node) => node.problems.map((text) => h("p", { class: "note bad" }, visible(text)));

function scoreLine(score) {
  if (!score.answered) return score.total === 0 ? ["score ", h("b", {}, "0"), " by rule: it did not finish with a message"] : "not scored";
  const total = score.total === null ? "unusable" : number(score.total);
  return [`gate ${score.gate} × weighted sum = `, h("b", {}, total), score.stated !== null && score.stated !== undefined ? h("span", { class: "note" }, ` (the scorer stated ${number(score.stated)})`) : null];
}

function rubricCall(call, tree) {
  return [call.prompt ? h("details", {}, h("summary", {}, "prompt"), h("pre", { class: "said" }, visible(call.prompt))) : null,
    h("pre", { class: "said" }, treeState.tokens ? tokenChips(call, tree) : markTrained(call.parts, tree.objective))];
}

// ---- Forked group: the attempts at one goal side by side, score against outcome

function forkCard(entry, tree) {
  const { node } = entry, { ranking } = node;
  const verdict = node.choice ? `attempt ${node.committed} was committed: ${node.choice}` : ranking.pairs ? `${ranking.right} of ${ranking.pairs} pairs ranked right, rubric reward ${number(ranking.reward)}` : "no pair of a success and a failure: no signal for the rubric";
  return h("div", { class: "card", id: "fork" }, h("h3", {}, `Forked group: ${node.attempts.length} attempts at this goal`), h("p", { class: "note" }, verdict),
    scoreStrip(node.attempts), h("div", { class: "attempts" }, node.attempts.map((attempt) => attemptCard(attempt, entry, tree))));
}

// Attempts of one outcome whose scores are too near to be drawn apart share a mark.
function clusters(attempts) {
  const found = [];
  for (const attempt of [...attempts].sort((a, b) => a.score.total - b.score.total || a.index - b.index)) {
    const last = found[found.length - 1];
    if (last && attempt.score.total - last[0].score.total < 0.08) last.push(attempt);
    else found.push([attempt]);
  }
  return found;
}

function scoreStrip(attempts) {
  const lanes = [[true, "success", "good"], [false, "failure", "bad"], [null, "not verified", "unknown"]];
  const mark = (group, kind) => {
    const at = group[0].score.total;
    return h("i", { class: kind, title: group.map((a) => `attempt ${a.index}: score ${number(a.score.total)}`).join("\n"), style: { left: `${100 * at}%`, transform: `translateX(${-100 * at}%)` } }, group.map((a) => a.index).join(" "));
  };
  const lane = ([value, label, kind]) => h("div", { class: "lane" }, h("span", {}, label), h("div", {}, clusters(attempts.filter((a) => a.verified === value && a.score.total !== null)).map((group) => mark(group, kind))));
  return h("div", { class: "strip" }, lanes.filter(([value]) => attempts.some((a) => a.verified === value)).map(lane),
    h("div", { class: "lane scale" }, h("span", {}, "score"), h("div", {}, ["0", "0.5", "1"].map((text) => h("span", {}, text)))));
}

function attemptCard(attempt, entry, tree) {
  const committed = attempt.index === entry.node.committed;
  const key = attempt.nodes.length ? `${entry.key}@${attempt.index}/${attempt.nodes[0].id}` : null;
  const scores = (entry.node.rubric ? entry.node.rubric.criteria : []).map((criterion, i) => h("div", { class: "criterion", title: flat(criterion.name || "") }, h("span", {}, flat(criterion.name || "")), bar(attempt.score.criteria[i], "score"), h("b", {}, number(attempt.score.criteria[i]))));
  return h("article", { class: committed ? "attempt committed" : "attempt", "data-attempt": attempt.index },
    h("h4", {}, outcomeMark(attempt.verified), ` attempt ${attempt.index}`, committed ? h("span", { class: "chip" }, "committed") : null),
    h("p", { class: "total" }, attempt.score.total === null ? "no score" : number(attempt.score.total), attempt.score.answered ? h("span", { class: "note" }, ` gate ${attempt.score.gate}`) : null),
    scores, h("p", { class: "note" }, `${attempt.status.replaceAll("_", " ")}${attempt.nodes.length ? `, ${plural(attempt.nodes.length, "node")}` : ""}`),
    attempt.message ? h("p", { class: "said" }, visible(attempt.message)) : h("p", { class: "note" }, "no message"),
    key ? h("a", { href: nodeLink(tree, key) }, "transcript ›") : h("p", { class: "note" }, committed ? "transcript below" : "transcript not kept"));
}

// ---- Transcript: turn by turn, trained tokens marked, tokens and their log-probs on demand

function transcript(entry, nodes, tree) {
  const { node } = entry, body = h("div", { class: "turns" });
  const toggle = h("button", { type: "button", id: "tokens", "aria-pressed": String(treeState.tokens), onclick: () => {
    treeState.tokens = !treeState.tokens;
    toggle.setAttribute("aria-pressed", String(treeState.tokens));
    show();
    const rubric = document.getElementById("rubric");
    if (rubric) rubric.replaceWith(rubricCard(node, tree));
  } }, "tokens and log-probs");
  const show = () => body.replaceChildren(...[treeState.tokens ? gapSummary(node) : null, promptTurn(node), node.steps.map((one, i) => turn(one, i, entry, nodes, tree))].flat().filter(Boolean));
  const marked = node.steps.some((one) => one.parts.length > 1);
  show();
  return h("div", { class: "card", id: "transcript" }, h("div", { class: "toolbar" }, h("h3", {}, "Transcript"), toggle,
    h("span", { class: "note" }, marked ? [h("mark", { class: `trained ${tree.objective}` }, "marked"), ` text was trained by the ${tree.objective} objective`] : "nothing of it was trained")), body,
    node.steps.length ? null : h("p", { class: "note" }, "The node ended before its first step."));
}

function promptTurn(node) {
  const text = node.prompt === null ? "The tokenizer was not found, so that the prompt cannot be shown." : node.prompt;
  return h("details", { class: "turn prompt" }, h("summary", {}, `prompt, ${plural(node.prompt_tokens, "token")}`), h("pre", { class: "said" }, visible(text)));
}

function turn(one, index, entry, nodes, tree) {
  const facts = [one.kind, one.order >= 0 && `call ${one.order}`, plural(one.ids.length, "token"), one.versions.length && `weights ${one.versions.map(([v]) => flat(v)).join(", ")}`];
  const event = [one.reward !== null && `ρ ${number(one.reward)}`, one.advantage !== null && `advantage ${signed(one.advantage)}`].filter(Boolean);
  const children = one.children.map((id) => nodes.get(entry.prefix + id)).filter(Boolean);
  const link = (child) => h("a", { class: "chip link", href: nodeLink(tree, child.key) }, outcomeMark(child.node.verified), ` ${child.node.id} `, h("span", { class: "goal" }, flat(child.node.goal)), child.node.attempts.length ? ` ×${child.node.attempts.length}` : null);
  return h("article", { class: `turn ${one.kind}` }, h("header", {}, h("b", {}, index + 1), facts.filter(Boolean).map((text) => h("span", {}, text)), event.map((text) => h("span", { class: "chip" }, text))),
    h("pre", { class: "said policy" }, treeState.tokens ? tokenChips(one, tree) : markTrained(one.parts, tree.objective)),
    children.length ? h("p", { class: "launched" }, children.map(link)) : null,
    one.observation ? h("pre", { class: "said observation" }, visible(one.observation)) : null);
}

function markTrained(parts, objective) {
  if (parts.length === 1) return visible(parts[0]);
  return [visible(parts[0]), h("mark", { class: `trained ${objective}` }, visible(parts[1])), visible(parts[2])];
}

const gapsOf = (call) => call.ids.map((_, i) => (call.trainer[i] === undefined || call.trainer[i] === null ? null : call.trainer[i] - call.logprobs[i]));

function gapSummary(node) {
  const gaps = node.steps.flatMap(gapsOf).filter((gap) => gap !== null).map(Math.abs);
  if (!gaps.length) return h("p", { class: "note" }, "Shaded by surprise, −log p at the server. The trainer's log-probs of this tree were not recorded.");
  const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length, most = gaps.reduce((a, b) => Math.max(a, b));
  return h("p", { class: "note" }, `Shaded by the gap between trainer and server, fully at 0.1 nat: mean ${number(mean)}, largest ${number(most)}. Point at a token for its numbers.`);
}

// The trained part of the text, told by characters, as the tokens that overlap it.
function tokenChips(call, tree) {
  const [before, block] = call.parts.length > 1 ? call.parts : ["", null];
  const all = call.parts.length > 1 && call.parts[0] === "" && call.parts[2] === "";
  const gaps = gapsOf(call);
  let at = 0;
  return call.ids.map((id, i) => {
    const known = tree.vocabulary[id], text = known === undefined ? `#${id} ` : known, start = at;
    at += text.length;
    const trained = block !== null && (all || (at > before.length && start < before.length + block.length));
    const gap = gaps[i], share = gap === null ? Math.min(1, -(call.logprobs[i] || 0) / 5) : Math.min(1, Math.abs(gap) / 0.1);
    const told = `id ${id}, server ${number(call.logprobs[i])}${gap === null ? "" : `, trainer ${number(call.trainer[i])}, gap ${signed(gap)}`}`;
    return h("span", { class: trained ? `token trained ${tree.objective}` : "token", title: told, tabindex: 0, style: { background: `color-mix(in srgb, var(--heat) ${Math.round(70 * share)}%, transparent)` } }, visible(text));
  });
}
