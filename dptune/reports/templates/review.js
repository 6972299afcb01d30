"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const items = data.items.map((item) => ({ ...item, points: Array.from(item.text) }));
  const state = items.map(() => ({ done: false, missed: [], alarms: [] }));
  const past = [];
  let at = 0, anchor = 0, cursor = 0, filter = "all", unsaved = false;
  const $ = (id) => document.getElementById(id);
  const same = (a, b) => a[0] === b[0] && a[1] === b[1];

  // Words are runs of letters and digits, joined by single marks as in O'Brien or
  // ann@example.org. All places are code points, as in the program that reads them;
  // JavaScript counts differently.
  const matters = (c) => c !== undefined && /[\p{L}\p{M}\p{N}]/u.test(c);
  const joins = (points, i) =>
    /['’.@_+-]/u.test(points[i]) && matters(points[i - 1]) && matters(points[i + 1]);
  const wordsOf = (points) => {
    const found = [];
    for (let i = 0; i < points.length; i += 1) {
      if (!matters(points[i])) continue;
      const start = i;
      while (matters(points[i]) || (i < points.length && joins(points, i))) i += 1;
      found.push([start, i]);
    }
    return found;
  };
  for (const item of items) item.words = wordsOf(item.points);

  const corrected = (one) => one.missed.length + one.alarms.length > 0;
  const shows = (index) => ({
    all: true,
    open: !state[index].done,
    decided: state[index].done,
    corrected: corrected(state[index]),
    unmarked: items[index].marks.length === 0,
  })[filter];
  const chosen = () => {
    const words = items[at].words;
    if (!words.length) return null;
    const [a, b] = [Math.min(anchor, cursor), Math.max(anchor, cursor)];
    return [words[a][0], words[b][1]];
  };
  const say = (text) => { $("say").textContent = text; };

  const keep = () => {
    past.push({ at, anchor, cursor, one: JSON.parse(JSON.stringify(state[at])) });
    unsaved = true;
  };
  const go = (index) => {
    at = index; anchor = cursor = 0; draw(); $("card").focus({ preventScroll: true });
  };
  const step = (by) => {
    for (let i = at + by; i >= 0 && i < items.length; i += by) {
      if (shows(i)) { go(i); return; }
    }
    say(by > 0 ? "This is the last one shown." : "This is the first one shown.");
  };
  const move = (by, extend) => {
    const last = items[at].words.length - 1;
    cursor = Math.max(0, Math.min(last, cursor + by));
    if (!extend) anchor = cursor;
    draw();
  };
  const jump = (by) => {
    const { marks, words } = items[at];
    const place = words.length ? words[cursor][0] : 0;
    const order = by > 0 ? marks : [...marks].reverse();
    const mark = order.find((m) => (by > 0 ? m[0] > place : m[1] <= place));
    if (!mark) { say("There is no other mark that way."); return; }
    const word = words.findIndex((w) => w[1] > mark[0]);
    if (word >= 0) { anchor = cursor = word; draw(); }
  };
  const missed = () => {
    const range = chosen();
    if (!range) return;
    const one = state[at];
    const covered = items[at].marks.some(
      (m, i) => !one.alarms.includes(i) && m[0] <= range[0] && range[1] <= m[1]);
    if (covered) { say("That is marked already."); return; }
    keep();
    const touched = one.missed.filter((m) => m[0] < range[1] && m[1] > range[0]);
    const rest = one.missed.filter((m) => !touched.includes(m));
    one.missed = touched.some((m) => same(m, range) || (m[0] <= range[0] && range[1] <= m[1]))
      ? rest : [...rest, range].sort((a, b) => a[0] - b[0]);
    say("");
    draw();
  };
  const alarm = () => {
    const range = chosen();
    const index = range === null ? -1
      : items[at].marks.findIndex((m) => m[0] < range[1] && m[1] > range[0]);
    if (index < 0) { say("There is no mark under the cursor."); return; }
    if (items[at].marks[index][3]) {
      say("This one has a valid checksum or an exact form: it stays marked."); return;
    }
    keep();
    const one = state[at];
    one.alarms = one.alarms.includes(index)
      ? one.alarms.filter((i) => i !== index) : [...one.alarms, index].sort((a, b) => a - b);
    say("");
    draw();
  };
  const approve = () => {
    keep();
    state[at].done = true;
    const order = [...items.keys()];
    const next = [...order.slice(at + 1), ...order.slice(0, at)].find((i) => !state[i].done);
    say(next === undefined ? "Every sentence is decided. Save, then import the file." : "");
    if (next === undefined) draw(); else go(next);
  };
  const undo = () => {
    const last = past.pop();
    if (!last) { say("There is nothing to undo."); return; }
    state[last.at] = last.one;
    unsaved = true;
    go(last.at);
    ({ anchor, cursor } = last);
    draw();
    say("Undone.");
  };
  const places = (ranges) => ranges.map(([start, end]) => ({ start, end }));
  const file = () => ({
    format: "dptune-review-decisions", version: 1, sample: data.sample, view: "original",
    decisions: items.flatMap((item, i) => state[i].done ? [{
      id: item.id,
      missed: places(state[i].missed),
      false_alarms: places(state[i].alarms.map((n) => item.marks[n])),
    }] : []),
  });
  const save = () => {
    const content = file();
    if (!content.decisions.length) { say("Nothing is decided yet."); return; }
    const link = document.createElement("a");
    const blob = new Blob([JSON.stringify(content, null, 1)], { type: "application/json" });
    link.href = URL.createObjectURL(blob);
    link.download = `decisions-${data.sample}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    unsaved = false;
    const left = items.length - content.decisions.length;
    say(`Saved ${content.decisions.length} decisions${left ? `; ${left} are open` : ""}. `
      + "Next: dptune review import FILE");
  };
  const load = async (chosenFile) => {
    try {
      const content = JSON.parse(await chosenFile.text());
      if (content.sample !== data.sample) { say("That file is of another review."); return; }
      const byId = new Map(items.map((item, i) => [item.id, i]));
      for (const decision of content.decisions) {
        const i = byId.get(decision.id);
        if (i === undefined) continue;
        state[i] = {
          done: true,
          missed: decision.missed.map((p) => [p.start, p.end]),
          alarms: decision.false_alarms.map(
            (p) => items[i].marks.findIndex((m) => same(m, [p.start, p.end])))
            .filter((n) => n >= 0),
        };
      }
      past.length = 0;
      say(`Loaded ${content.decisions.length} decisions.`);
      draw();
    } catch { say("That file holds no decisions."); }
  };

  const draw = () => {
    const item = items[at], one = state[at];
    const text = $("text");
    text.replaceChildren();
    const range = chosen();
    const boundaries = new Set([0, item.points.length]);
    for (const [a, b] of [...item.marks, ...one.missed, ...item.words, ...item.doubts]) {
      boundaries.add(a); boundaries.add(b);
    }
    const cuts = [...boundaries].sort((a, b) => a - b);
    let host = text, hostKey = "";
    for (let i = 0; i + 1 < cuts.length; i += 1) {
      const [a, b] = [cuts[i], cuts[i + 1]];
      const markIndex = item.marks.findIndex((m) => m[0] <= a && b <= m[1]);
      const isMissed = one.missed.some((m) => m[0] <= a && b <= m[1]);
      const key = isMissed ? `x${one.missed.findIndex((m) => m[0] <= a && b <= m[1])}`
        : markIndex >= 0 ? `m${markIndex}` : "";
      if (key !== hostKey) {
        hostKey = key;
        host = text;
        if (key) {
          host = document.createElement("span");
          if (isMissed) host.className = "missed";
          else {
            const isAlarm = one.alarms.includes(markIndex);
            host.className = isAlarm ? "mark alarm" : "mark";
            host.dataset.type = item.marks[markIndex][2] + (isAlarm ? " · FALSE ALARM" : "");
          }
          text.append(host);
        }
      }
      const word = item.words.findIndex((w) => w[0] <= a && b <= w[1]);
      const piece = document.createElement("span");
      piece.textContent = item.points.slice(a, b).join("");
      if (word >= 0) {
        piece.className = "word";
        if (range && a >= range[0] && b <= range[1]) piece.classList.add("chosen");
        piece.addEventListener("click", (event) => {
          cursor = word;
          if (!event.shiftKey) anchor = word;
          draw();
        });
      }
      if (item.doubts.some((d) => d[0] <= a && b <= d[1])) piece.classList.add("doubt");
      host.append(piece);
    }
    $("before").textContent = item.before;
    $("after").textContent = item.after;
    $("card").classList.toggle("decided", one.done);
    $("verdict").textContent = (one.done ? "✓ decided" : "open")
      + ` · ${item.marks.length} marked · ${one.missed.length} missed`
      + ` · ${one.alarms.length} false alarms` + (item.hint ? ` · ${item.hint}` : "");
    const done = state.filter((s) => s.done).length;
    $("bar").value = done;
    $("done").textContent = `${done} of ${items.length} decided`;
    $("where").textContent = `Sentence ${at + 1} of ${items.length}`;
  };

  const pick = (value) => {
    filter = value;
    $("filter").value = value;
    if (!shows(at)) {
      const first = items.findIndex((_, i) => shows(i));
      if (first < 0) { say("No sentence of that kind."); return; }
      go(first);
    }
    say(`${items.filter((_, i) => shows(i)).length} sentences shown.`);
  };
  const kinds = ["all", "open", "decided", "corrected", "unmarked"];
  const keys = {
    ArrowRight: (e) => move(1, e.shiftKey), ArrowLeft: (e) => move(-1, e.shiftKey),
    ArrowDown: () => step(1), ArrowUp: () => step(-1), j: () => step(1), k: () => step(-1),
    ".": () => jump(1), ",": () => jump(-1), m: missed, f: alarm, Enter: approve,
    a: approve, u: undo, s: save,
    "/": () => pick(kinds[(kinds.indexOf(filter) + 1) % kinds.length]),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target instanceof HTMLSelectElement) return;
    const button = event.target instanceof HTMLButtonElement || event.target.tagName === "SUMMARY";
    if (button && (event.key === "Enter" || event.key === " ")) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act(event);
  });
  const press = (id, act) => $(id).addEventListener("click", () => { act(); $("card").focus(); });
  press("previous", () => step(-1));
  press("next", () => step(1));
  press("approve", approve);
  press("missed", missed);
  press("alarm", alarm);
  press("undo", undo);
  press("save", save);
  $("filter").addEventListener("change", (event) => { pick(event.target.value); $("card").focus(); });
  $("load").addEventListener("change", (event) => {
    if (event.target.files.length) load(event.target.files[0]);
    event.target.value = "";
  });
  window.addEventListener("beforeunload", (event) => {
    if (unsaved) event.preventDefault();
  });
  go(0);
})();
