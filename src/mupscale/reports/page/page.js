// What outlives a refresh, and the refresh itself.

const PLACE = `mupscale:${page.name}:${page.refresh_seconds === null ? "final" : "watched"}`;

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(PLACE)) || {};
  } catch {
    return {}; // some browsers keep nothing for files
  }
}

function store(values) {
  try {
    sessionStorage.setItem(PLACE, JSON.stringify({ ...stored(), ...values }));
  } catch {
    // nothing is lost but the place on the page
  }
}

function recalled() {
  if (page.refresh_seconds === null) return {};
  const { sort, down, first, search, words } = stored().table || {};
  const chosen = {};
  for (const [key, word] of Object.entries(words || {})) {
    const at = page.columns.find((column) => column.key === key)?.words?.indexOf(word) ?? -1;
    if (at >= 0) chosen[key] = at;
  }
  return { sort: sort || null, down: Boolean(down), first: first || 0, search: search || "", chosen };
}

function remember() {
  if (page.refresh_seconds === null) return;
  const { sort, down, first, search, chosen } = table;
  const words = Object.fromEntries(Object.entries(chosen).map(([key, at]) =>
    [key, page.columns.find((column) => column.key === key).words[at]]));
  store({ table: { sort, down, first, search, words } });
}

function startRefresh() {
  if (page.refresh_seconds === null) return;
  let paused = Boolean(stored().paused);
  const button = document.getElementById("pause");
  const show = () => {
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Paused" : "Pause";
  };
  button.addEventListener("click", () => {
    paused = !paused;
    store({ paused });
    show();
  });
  show();
  const before = stored().scroll;
  if (before) window.scrollTo({ top: before, behavior: "instant" });
  setInterval(() => {
    if (paused || document.activeElement?.id === "trial-search") return;
    store({ scroll: window.scrollY });
    location.reload();
  }, page.refresh_seconds * 1000);
}

startTrials();
startFigures();
startRefresh();
