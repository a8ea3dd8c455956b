"use strict";
// The page is whole without this script: it only adds the filter, the copy buttons and opening what a link points at.

const cases = [...document.querySelectorAll(".case")];
const groups = [...document.querySelectorAll(".cell, .path, .trainer")];

function filter(key) {
  for (const one of cases) one.hidden = key !== null && one.dataset.key !== key;
  for (const group of groups) {
    group.hidden = group.querySelector(".case:not([hidden])") === null;
    if (group.matches(".path")) group.open = key !== null && !group.hidden;
  }
}

for (const item of document.querySelectorAll("#tally li")) {
  const button = document.createElement("button");
  button.type = "button";
  button.title = "Show only these cases";
  button.setAttribute("aria-pressed", "false");
  button.append(...item.childNodes);
  item.append(button);
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") === "false";
    for (const other of document.querySelectorAll("#tally button")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(on));
    filter(on ? item.dataset.key : null);
    if (on) document.getElementById("cases").scrollIntoView();
  });
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

function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  if (target === null) return;
  for (let box = target; box !== null; box = box.parentElement) {
    box.hidden = false;
    if (box.tagName === "DETAILS") box.open = true;
  }
  target.scrollIntoView();
}

addEventListener("hashchange", reveal);
addEventListener("click", (event) => {
  if (event.target.closest('a[href^="#"]')) requestAnimationFrame(reveal);
});
if (location.hash) reveal();
