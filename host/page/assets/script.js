// Shows changes while a page is open, and copies commands. Pages work without it.
"use strict";

// Replaces the parts of the page that changed by those of the page as the server makes it now. Parts have the attribute
// data-live; in a list, each child with an id is a part of its own.
async function refresh() {
  const response = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
  if (response.redirected || !response.ok) {
    state("off", response.redirected ? "signed out; reload the page" : "the page cannot be loaded");
    return;
  }
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
  for (const part of document.querySelectorAll("[data-live]")) {
    const now = fresh.getElementById(part.id);
    if (!now) continue;
    if (part.dataset.live === "list") replaceChildren(part, now);
    else replace(part, now);
  }
  if (atEnd && document.getElementById("turns")) scrollTo(0, document.documentElement.scrollHeight);
}

function replaceChildren(list, fresh) {
  for (const now of [...fresh.children]) {
    const part = now.id && list.querySelector(":scope > #" + CSS.escape(now.id));
    if (part) replace(part, now);
    else if (now.id) list.append(now);
  }
  for (const part of [...list.children]) {
    if (part.id && !fresh.ownerDocument.getElementById(part.id)) part.remove();
  }
}

// Keeps what the reader has opened, and a part in which the keyboard is.
function replace(part, now) {
  if (part.innerHTML === now.innerHTML) return;
  const open = [...part.querySelectorAll("details")].map((details) => details.open);
  const focus = part.contains(document.activeElement) ? [...part.querySelectorAll("a, button, summary")].indexOf(document.activeElement) : -1;
  part.replaceChildren(...now.childNodes);
  part.querySelectorAll("details").forEach((details, at) => { details.open = open[at] === true; });
  if (focus >= 0) part.querySelectorAll("a, button, summary")[focus]?.focus({ preventScroll: true });
}

function state(kind, text) {
  const shown = document.getElementById("live");
  if (!shown) return;
  shown.className = "live " + kind;
  shown.textContent = text;
}

function watch(address) {
  let isBusy = false, isDue = false;
  const update = async () => {
    if (isBusy) { isDue = true; return; }
    isBusy = true;
    try { await refresh(); } catch { state("off", "the server does not answer; trying again"); }
    isBusy = false;
    if (isDue) { isDue = false; update(); }
  };
  const events = new EventSource(address);
  events.addEventListener("open", () => state("on", "live"));
  events.addEventListener("change", update);
  events.addEventListener("over", () => { update(); events.close(); state("", "ended"); });
  events.addEventListener("full", (event) => { events.close(); state("off", event.data); });
  events.addEventListener("error", () => {
    if (events.readyState === EventSource.CLOSED) state("off", "not live; reload the page");
    else state("off", "the connection is lost; trying again");
  });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    // Without TLS a browser allows no copy on other machines; the command is selected instead.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

if (document.body.dataset.events) watch(document.body.dataset.events);
