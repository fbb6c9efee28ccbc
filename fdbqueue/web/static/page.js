// Refresh the parts of a page that say so, while the page is visible; and choose all items of a list.
"use strict";

for (const part of document.querySelectorAll("[data-refresh]")) {
  const seconds = Number(part.dataset.refresh);
  setInterval(async () => {
    if (document.hidden || part.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById(part.id);
      if (fresh) part.replaceChildren(...fresh.childNodes);
    } catch {
      // The server is away for a moment. The next look tells.
    }
  }, seconds * 1000);
}

for (const all of document.querySelectorAll("input[data-all]")) {
  all.addEventListener("change", () => {
    for (const box of all.form.querySelectorAll("input[name=position]")) box.checked = all.checked;
  });
}
