// Shows what the switch says of itself and its jobs, every two seconds. Hosts of strangers wrote some of the texts, so
// all of them become text nodes: this file never makes HTML of a string.
"use strict";

const EVERY_MS = 2000, STALE_MS = 10000;
const ROWS = 16;  // of a job's members
const BOX = 26;  // the height of a switch in the tree
const find = selector => document.querySelector(selector);

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter(child => child !== null && child !== ""));
  return element;
}
const html = (tag, attributes = {}, ...children) => made(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  made(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const known = (value, form) => value === null || value === undefined ? "unknown" : form(value);
const percent = value => `${Math.round(100 * value)} %`;
const seconds = value => value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
const figure = value => Number(value.toPrecision(2)).toString();

function bar(share) {
  const filled = html("i");
  filled.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return html("div", { class: "bar" }, filled);
}

const sentence = ([text, tone]) => html("p", { class: tone || "well" }, text);

// Plots. `points` are [seconds ago, value] or, of several lines, values beside each other; the newest comes last.

function path(points, line, most, history) {
  let drawn = "", before = null;
  for (const point of points) {
    const x = 100 * (1 - point[0] / history.span_s), y = 100 - 96 * Math.min(1, point[line] / most);
    const begins = before === null || before - point[0] > 2 * history.step_s;  // no epoch ran in between
    drawn += `${begins ? "M" : "L"}${x.toFixed(2)} ${y.toFixed(2)}`;
    before = point[0];
  }
  return drawn;
}

function area(points, most, history) {
  const runs = [];
  for (const point of points) {
    const run = runs.at(-1);
    if (run && run.at(-1)[0] - point[0] <= 2 * history.step_s) run.push(point); else runs.push([point]);
  }
  const x = point => (100 * (1 - point[0] / history.span_s)).toFixed(2);
  return runs.map(run => `${path(run, 1, most, history)}L${x(run.at(-1))} 100L${x(run[0])} 100Z`).join("");
}

function plot(title, points, history, faults, { limit = null, least = 0, told }) {
  const second = points.some(point => point.length > 2 && typeof point[2] === "number");
  const highest = Math.max(least, limit ?? 0, ...points.map(point => Math.max(point[1], second ? point[2] : 0)));
  const most = highest || 1;
  const value = html("b", {}, points.length ? told(points.at(-1)) : "no sums yet");
  const picture = svg("svg", { class: "plot", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: ${value.textContent}` });
  for (const ago of faults) {
    const x = 100 * (1 - ago / history.span_s);
    picture.append(svg("line", { class: "fault", x1: x, x2: x, y1: 0, y2: 100 }));
  }
  if (limit) {
    const y = 100 - 96 * limit / most;
    picture.append(svg("line", { class: "limit", x1: 0, x2: 100, y1: y, y2: y }));
  }
  picture.append(svg("path", { class: "area", d: area(points, most, history) }));
  if (second) picture.append(svg("path", { class: "second", d: path(points, 2, most, history) }));
  picture.append(svg("path", { class: "first", d: path(points, 1, most, history) }));
  picture.addEventListener("pointermove", event => {
    const box = picture.getBoundingClientRect();
    const ago = history.span_s * (1 - (event.clientX - box.left) / box.width);
    const nearest = points.reduce((a, b) => Math.abs(b[0] - ago) < Math.abs(a[0] - ago) ? b : a, points[0]);
    if (nearest) value.textContent = `${told(nearest)}, ${seconds(nearest[0])} ago`;
  });
  picture.addEventListener("pointerleave", () => {
    if (points.length) value.textContent = told(points.at(-1));
  });
  const ends = html("div", { class: "ends" }, html("span", {}, `${figure(history.span_s / 60)} min ago`),
    html("span", {}, "now"));
  return html("figure", {}, html("figcaption", {}, html("span", {}, title), value), picture, ends);
}

function plots(job, told, recoveries) {
  // A job may be called as what all objects have. Points: [ago, goodput, waited for the latest, its rank, for others, resends]
  const points = Object.hasOwn(told.jobs, job.job) ? told.jobs[job.job] : [];
  const history = { step_s: told.step_s, span_s: Math.min(told.span_s, Math.max(60, points[0]?.[0] ?? 0)) };
  const faults = recoveries.filter(one => one.job === job.job && one.ago_s < history.span_s).map(one => one.ago_s);
  return html("div", { class: "plots" },
    plot("Goodput", points.map(p => [p[0], p[1]]), history, faults,
      { limit: job.link_gbit, told: p => `${figure(p[1])} Gbit/s` }),
    plot("Others waited", points.map(p => [p[0], p[2], p[4], p[3]]), history, faults,
      { least: 0.1, told: p => `rank ${p[3]}: ${percent(p[1])}` }),
    plot("Resends", points.map(p => [p[0], p[5]]), history, faults,
      { least: 1, told: p => `${figure(p[1])} a second` }));
}

// The tree: the parent, this switch, and below it hosts, and racks' switches with their hosts.

function standsStill(job) {
  return job.oldest !== null && job.oldest.waited_s >= 1;
}

function stateOf(rank, member, job) {
  if (job.left.includes(rank)) return "left";
  if (standsStill(job) && job.oldest.missing.includes(rank)) return "awaited";
  return job.late.some(late => late.ranks.includes(rank) && late.ranks.length === member.ranks.length) ? "late" : "well";
}

const MEANINGS = { well: "takes part", late: "is late", awaited: "its part is missing", left: "has left", absent: "isn't here" };

function tree(job, switchName, parent, width) {
  const racks = new Set(job.members.filter(member => member.switch).flatMap(member => member.ranks));
  const groups = job.members.map(member => ({
    rack: member.switch,
    nodes: member.ranks.map(rank => {
      const host = member.hosts.find(one => one.rank === rank) ?? {};
      return { rank, name: host.name || host.address || "", state: stateOf(rank, member, job) };
    }),
  }));
  for (const rank of job.absent) {
    if (!racks.has(rank)) groups.push({ rack: null, nodes: [{ rank, name: "", state: "absent" }] });
  }
  groups.sort((a, b) => a.nodes[0].rank - b.nodes[0].rank);
  const count = groups.reduce((sum, group) => sum + group.nodes.length, 0);
  const room = width - 16, named = count > 0 && room / count >= 80;
  const step = named ? Math.min(130, room / count) : count > 64 ? 20 : 34, radius = count > 64 ? 8 : 13, gap = count > 64 ? 7 : 14;
  const perRow = Math.max(1, Math.floor(room / step + 1e-6));
  const rows = [[]];
  let used = 0;
  for (const group of groups) {  // a rack that is wider than a row goes on in the next one
    for (let first = 0; first < group.nodes.length; first += perRow) {
      const nodes = group.nodes.slice(first, first + perRow);
      if (used + nodes.length > perRow) { rows.push([]); used = 0; }
      rows.at(-1).push({ rack: group.rack, nodes });
      used += nodes.length;
    }
  }
  const picture = svg("svg", { class: "tree", width, role: "img", "aria-label": "the tree of this job" });
  const middle = width / 2;
  let y = 2;
  const labelled = text => {
    const half = Math.min(middle - 2, 12 + 3.6 * text.length);
    picture.append(svg("rect", { x: middle - half, y, width: 2 * half, height: BOX, rx: 6 }),
      svg("text", { x: middle, y: y + BOX / 2 }, text));
    y += BOX;
  };
  if (parent) {
    labelled(`parent ${parent}`);
    picture.append(svg("line", { x1: middle, x2: middle, y1: y, y2: y + 16 }));
    y += 16;
  }
  labelled(`this switch, ${switchName}`);
  let before = y;  // where the line to the next row begins
  for (const [index, row] of rows.entries()) {
    const nodes = row.reduce((sum, group) => sum + group.nodes.length, 0);
    const bus = y + gap;
    let x = middle - nodes * step / 2;
    const ends = [];
    const hasRacks = row.some(group => group.rack);
    const center = bus + (hasRacks ? 46 : gap + 2) + radius;
    for (const group of row) {
      const left = x, wide = group.nodes.length * step;
      const join = left + wide / 2;
      ends.push(join);
      if (group.rack) {
        picture.append(svg("line", { x1: join, x2: join, y1: bus, y2: bus + 12 }),
          svg("rect", { class: "group", x: left + 2, y: bus + 12, width: wide - 4, height: center + radius + 6 - bus - 12, rx: 6 }),
          svg("text", { x: join, y: bus + 25, class: "name" }, fitted(group.rack, wide)));
      } else {
        picture.append(svg("line", { x1: join, x2: join, y1: bus, y2: center - radius }));
      }
      for (const node of group.nodes) {
        const at = x + step / 2;
        picture.append(svg("g", {}, svg("title", {}, `rank ${node.rank} ${node.name}: ${MEANINGS[node.state]}`),
          svg("circle", { class: node.state, cx: at, cy: center, r: radius }),
          radius > 10 ? svg("text", { x: at, y: center }, String(node.rank)) : ""));
        if (named && !group.rack) {
          picture.append(svg("text", { x: at, y: center + radius + 11, class: "name" }, fitted(node.name, step)));
        }
        x += step;
      }
    }
    const trunk = index === 0 ? middle : 4;  // further rows hang at the left
    const reach = rows.length > 1 ? [4, ...ends, trunk] : [...ends, trunk];
    picture.append(svg("line", { x1: Math.min(...reach), x2: Math.max(...reach), y1: bus, y2: bus }),
      svg("line", { x1: trunk, x2: trunk, y1: before, y2: bus }));
    before = bus;
    y = center + radius + (named ? 20 : hasRacks ? 8 : gap / 2);
  }
  picture.setAttribute("viewBox", `0 0 ${width} ${y + 2}`);
  const states = new Set(groups.flatMap(group => group.nodes.map(node => node.state)));
  const legend = Object.keys(MEANINGS).filter(state => states.has(state))
    .map(state => html("span", {}, html("i", { class: state }), MEANINGS[state]));
  return html("div", {}, picture, html("div", { class: "legend" }, ...legend));
}

function fitted(text, width) {
  const most = Math.max(3, Math.floor(width / 6.2));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// Jobs and lists.

// Writes ranks, which are in ascending order, as "1, 4–9".
function runs(ranks) {
  const found = [];
  for (const rank of ranks) {
    if (rank === found.at(-1)?.[1] + 1) found.at(-1)[1] = rank;
    else found.push([rank, rank]);
  }
  return found.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ");
}

function members(job) {
  const late = new Set(job.late.map(one => String(one.ranks)));
  const isCounted = job.members.some(member => member.waited_s !== null);  // it runs, at a data plane that can tell
  const longest = [...job.members].sort((a, b) => (b.waited_s ?? 0) - (a.waited_s ?? 0) || a.ranks[0] - b.ranks[0]);
  const shown = longest.slice(0, ROWS).sort((a, b) => a.ranks[0] - b.ranks[0]);
  const rows = shown.map(member => {
    const [host] = member.hosts;
    const name = member.switch ? `switch ${member.switch}` : host.name || member.address;
    const cells = [html("td", {}, runs(member.ranks)),
      html("td", {}, name, name === member.address ? "" : html("small", {}, member.address))];
    if (isCounted) {
      const waited = html("td", {}, known(member.waited_s, seconds), bar(member.waited_share ?? 0));
      cells.push(html("td", {}, known(member.last_share, percent)), waited, html("td", {}, known(member.resends, String)),
        html("td", {}, member.has_left ? "left" : known(member.silent_s, seconds)));
    }
    return html("tr", { class: late.has(String(member.ranks)) ? "late" : "" }, ...cells);
  });
  const heads = ["rank", "host", ...(isCounted ? ["came last", "others waited", "resends", "silent for"] : [])];
  const more = longest.length - shown.length;
  return html("div", {}, html("table", {}, html("thead", {}, html("tr", {}, ...heads.map(head => html("th", {}, head)))),
    html("tbody", {}, ...rows)), more ? html("p", { class: "faint" },
    `and ${more} more, for whom the others waited less (jax-passing status --json has all)`) : "");
}

function job(each, told, seen, width) {
  const [what, ...more] = told;
  const stands = more.some(([, tone]) => tone === "bad");
  const state = stands ? ["bad", "stands still"] : each.state === "running" ? ["", "running"] : ["note", each.state];
  return html("section", { class: "job" },
    html("header", {}, html("h2", {}, each.job), html("span", { class: `state ${state[0]}` }, state[1])),
    html("p", { class: "faint" }, what[0]), ...more.map(sentence),
    each.goodput_gbit !== null ? plots(each, seen.history, seen.recoveries) : "",
    tree(each, seen.switches[0].address, each.parents[0] ?? "", width), members(each));
}

// Returns the job; if it can't be shown, why, as others are to be seen even so.
function jobOrWhyNot(each, told, seen, width) {
  try {
    return job(each, told, seen, width);
  } catch (error) {
    console.error(error);
    return html("section", { class: "job" }, html("header", {}, html("h2", {}, each.job)),
      sentence([`This page can't show the job (${error.message}): jax-passing status can.`, "note"]));
  }
}

function listed(title, items) {
  return items.length ? html("section", {}, html("h3", {}, title), html("ul", {}, ...items)) : "";
}

function leftOut({ jobs, ranks }) {
  return `${jobs} more jobs, and ${ranks} more ranks, aren't shown here: jax-passing status --json has all.`;
}

function show(seen) {
  const [own] = seen.switches, told = seen.sentences, main = find("main");
  find("#address").textContent = own.address;
  document.title = `${seen.jobs.some(standsStill) ? "⚠ " : ""}switch ${own.address}`;
  const width = Math.max(280, main.clientWidth - (main.clientWidth < 620 ? 24 : 30));
  const refusals = Object.entries(seen.refused_for).filter(([, count]) => count).map(([why, count]) => `${why} ${count}`);
  const lines = texts => texts.map(text => html("li", {}, text));
  main.replaceChildren(
    html("section", {}, ...told.switch.map((one, index) => index ? sentence(one) : html("p", { class: "faint" }, one[0])),
      html("div", { class: "slots" }, "slots", bar(own.slots_used / own.slots),
        `${own.slots_used} used, ${own.slots - own.slots_used} free`)),
    ...seen.jobs.map((each, index) => jobOrWhyNot(each, told.jobs[index], seen, width)),
    ...(seen.jobs.length ? [] : [html("section", {}, html("p", { class: "faint" }, "No jobs."))]),
    seen.left_out.jobs + seen.left_out.ranks ? sentence([leftOut(seen.left_out), "note"]) : "",
    listed("Hosts that wait to meet", lines(told.meetings)),
    listed("Recoveries of the last hour", lines(told.recoveries)),
    listed(`Refused${refusals.length ? ` (${refusals.join(", ")})` : ""}`, lines(told.refusals)),
    listed("Ended", lines(told.ended)));
}

// The loop.

let lastMs = Date.now(), timer = 0, isAsking = false;

function stale(text) {
  find("#connection").textContent = text;
  find("#connection").classList.toggle("stale", Date.now() - lastMs > STALE_MS);
}

async function look() {
  if (isAsking) return;
  isAsking = true;
  clearTimeout(timer);
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(8000) });
    if (!answer.ok) throw new Error(`the switch answers ${answer.status}`);
    const seen = await answer.json();
    lastMs = Date.now();
    stale(`as of ${new Date().toLocaleTimeString()}`);
    if (getSelection().isCollapsed) show(seen);  // else somebody copies a text
  } catch (error) {
    stale(`no answer for ${Math.round((Date.now() - lastMs) / 1000)} s (${error.message})`);
  } finally {
    isAsking = false;
    if (!document.hidden) timer = setTimeout(look, EVERY_MS);
  }
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
look();
