"use strict";
// The page is whole without this script: it adds searching and filtering, the copy buttons and opening what a link points at.

const form = document.getElementById("find");
const cases = [...document.querySelectorAll(".case")];
const groups = [...document.querySelectorAll(".brief, .cell, .path, .trainer")];

const value = (one, name) => one.closest(`[data-${name}]`)?.dataset[name] ?? "";
const facts = new Map(cases.map((one) => [one, {
  q: (one.dataset.id ?? one.firstChild.textContent).toLowerCase(),
  verdict: value(one, "key"), trainer: value(one, "trainer"), path: value(one, "path"),
  precision: value(one, "precision"), cause: value(one, "cause"),
}]));

function wanted() {
  const chosen = new FormData(form);
  return [...chosen].filter(([, text]) => text !== "");
}

// A case may have several causes: "1 3".
function matches(fact, name, text) {
  if (name === "q") return fact.q.includes(text.toLowerCase());
  return name === "cause" ? fact.cause.split(" ").includes(text) : fact[name] === text;
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
  form.querySelector("output").textContent = `${count} of ${cases.length} cases`;
}

function keep() {
  const fragment = new URLSearchParams(wanted()).toString();
  history.replaceState(null, "", `#${fragment || "cases"}`);
  filter();
}

function restore(fragment) {
  form.reset();
  for (const [name, text] of new URLSearchParams(fragment)) {
    const field = form.elements.namedItem(name);
    if (field !== null) field.value = text;
  }
  filter();
  document.getElementById("cases").scrollIntoView();
}

function reveal(id) {
  const target = document.getElementById(id);
  if (target === null) return;
  for (let box = target; box !== null; box = box.parentElement) {
    if (box.hidden && box !== form) {
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
  for (const link of document.querySelectorAll("a[data-cause]")) link.href = `#cause=${link.dataset.cause}`;
}

for (const block of document.querySelectorAll(".cmd")) {
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
follow();
