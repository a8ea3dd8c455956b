"use strict";
// The page works without this script, which adds search, filters, copy buttons, and opens the targets of links.

const form = document.getElementById("find");
const search = document.getElementById("search");
const lost = document.getElementById("lost");
const cases = [...document.querySelectorAll(".case")];
const groups = [...document.querySelectorAll(".brief, .cell, .path, .trainer")];
const problems = [...document.querySelectorAll(".problem[id]")];

const value = (one, name) => one.closest(`[data-${name}]`)?.dataset[name] ?? "";
const facts = new Map(cases.map((one) => [one, {
  q: (one.dataset.id ?? one.firstChild.textContent).toLowerCase(),
  verdict: value(one, "key"), trainer: value(one, "trainer"), path: value(one, "path"),
  precision: value(one, "precision"), workload: value(one, "workload"),
  problem: value(one, "problem").split(" "), law: value(one, "law").split(" "),
}]));

function wanted() {
  const chosen = new FormData(form);
  return [...chosen].filter(([, text]) => text !== "");
}

function matches(fact, name, text) {
  if (name === "q") return fact.q.includes(text.toLowerCase());
  return Array.isArray(fact[name]) ? fact[name].includes(text) : fact[name] === text;
}

function filter() {
  const wants = wanted();
  let count = 0;
  for (const one of cases) {
    const fact = facts.get(one);
    one.hidden = !wants.every(([name, text]) => matches(fact, name, text));
    count += !one.hidden;
  }
  for (const group of groups) {
    group.hidden = group.querySelector(".case:not([hidden])") === null;
    if (group.matches(".path")) group.open = wants.length > 0 && !group.hidden;
    if (group.matches(".brief")) group.previousElementSibling.hidden = group.hidden;
  }
  form.querySelector("output").textContent =
    `${count} of ${cases.length} cases${count ? "" : ": none matches all filters. “Show all” resets them."}`;
}

function find() {
  const text = search.elements.namedItem("text").value.toLowerCase();
  for (const one of problems) one.hidden = !one.textContent.toLowerCase().includes(text);
  const count = problems.filter((one) => !one.hidden).length;
  search.querySelector("output").textContent =
    `${count} of ${problems.length} problems${count ? "" : `: none contains “${text}”.`}`;
}

function keep() {
  const fragment = new URLSearchParams(wanted()).toString();
  history.replaceState(null, "", `#${fragment || "cases"}`);
  filter();
}

function miss(what) {
  lost.textContent = `This report has no ${what}. The link may belong to another run; all problems and cases are below.`;
  lost.hidden = false;
  lost.scrollIntoView();
}

function restore(fragment) {
  form.reset();
  const unknown = [];
  for (const [name, text] of new URLSearchParams(fragment)) {
    const field = form.elements.namedItem(name);
    if (field !== null) field.value = text;
    if (field?.value !== text) unknown.push(`${name} “${text}”`);
  }
  filter();
  document.getElementById("cases").scrollIntoView();
  if (unknown.length) miss(unknown.join(", "));
}

function reveal(id) {
  const target = document.getElementById(id);
  if (target === null) {
    miss(`“${id}”`);
    return;
  }
  if (search !== null && target.closest(".problem")?.hidden) {
    search.reset();
    find();
  }
  for (let box = target; box !== null; box = box.parentElement) {
    if (box.hidden && box !== form && box !== lost) {
      form.reset();
      filter();
    }
    if (box.tagName === "DETAILS") box.open = true;
  }
  target.scrollIntoView();
}

// A filter stands in the address as `name=value`; no id has a "=".
function follow() {
  const fragment = location.hash.slice(1);
  lost.hidden = true;
  if (form !== null && fragment.includes("=")) restore(fragment);
  else if (fragment) reveal(decodeURIComponent(fragment));
}

if (form !== null) {
  form.hidden = false;
  form.addEventListener("input", keep);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.querySelector("button").addEventListener("click", () => {
    form.reset();
    keep();
  });
  for (const item of document.querySelectorAll("#tally li")) {
    const link = document.createElement("a");
    link.href = `#verdict=${item.dataset.key}`;
    link.append(...item.childNodes);
    item.append(link);
  }
  for (const link of document.querySelectorAll("a[data-problem]")) link.href = `#problem=${link.dataset.problem}`;
}

if (search !== null) {
  search.hidden = false;
  search.addEventListener("input", find);
  search.addEventListener("submit", (event) => event.preventDefault());
}

for (const block of document.querySelectorAll(".cmd:not(.source)")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  block.prepend(button);
  button.addEventListener("click", async () => {
    const code = block.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // Some browsers give a file: page no clipboard; the text is then selected for the reader to copy.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
}

addEventListener("hashchange", follow);
addEventListener("click", (event) => {
  if (event.target.closest('a[href^="#"]')?.hash === location.hash) follow();
});
for (const marked of document.querySelectorAll(".lanes .marked")) {
  const box = marked.closest(".scroll");
  const [inner, outer] = [marked, box].map((one) => one.getBoundingClientRect().right);
  if (box.scrollLeft === 0) box.scrollLeft = Math.max(0, inner - outer);
}
follow();
