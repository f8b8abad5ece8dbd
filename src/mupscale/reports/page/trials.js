// Every trial: sorted and filtered as arrays, and only one page of them ever in the document.

const PAGE_ROWS = 50;
const table = { sort: null, down: false, first: 0, order: [], search: "", chosen: {} };

function textOf(column, row) {
  return column.words ? column.words[column.values[row]] : column.values[row] === null ? "" : String(column.values[row]);
}

function compared(column) {
  if (!column.words) {
    // What has no number comes last, whichever way it is sorted.
    const sign = table.down ? -1 : 1;
    return (a, b) => {
      const left = column.values[a], right = column.values[b];
      if (left === null || right === null) return (left === null) - (right === null) || a - b;
      return sign * (left - right) || a - b;
    };
  }
  const ranks = new Int32Array(column.words.length);
  const collator = new Intl.Collator("en", { numeric: true });
  column.words.map((word, at) => at).sort((a, b) => collator.compare(column.words[a], column.words[b]))
    .forEach((at, rank) => { ranks[at] = rank; });
  const sign = table.down ? -1 : 1;
  return (a, b) => sign * (ranks[column.values[a]] - ranks[column.values[b]]) || a - b;
}

function matching() {
  const texts = page.columns.filter((column) => column.words);
  const wanted = table.search.toLowerCase().split(/\s+/).filter(Boolean);
  // A word is looked for once in each distinct text, not once in each row.
  const hits = wanted.map((word) => texts.map((column) => column.words.map((text) => text.toLowerCase().includes(word))));
  const selects = texts.filter((column) => table.chosen[column.key] !== undefined);
  const rows = [];
  for (let row = 0; row < page.columns[0].values.length; row += 1) {
    const found = hits.every((hit) => texts.some((column, at) => hit[at][column.values[row]]));
    if (found && selects.every((column) => column.values[row] === table.chosen[column.key])) rows.push(row);
  }
  return rows;
}

function refreshTrials() {
  table.order = matching();
  const column = page.columns.find((one) => one.key === table.sort);
  if (column) table.order.sort(compared(column));
  table.first = Math.min(table.first, Math.max(0, Math.floor((table.order.length - 1) / PAGE_ROWS) * PAGE_ROWS));
  showTrials();
  remember();
}

function showTrials() {
  const shown = table.order.slice(table.first, table.first + PAGE_ROWS);
  const body = document.querySelector("#trial-table tbody");
  body.replaceChildren(...shown.map(trialRow));
  const all = page.columns[0].values.length;
  const total = table.order.length;
  const found = total === all ? `${all.toLocaleString("en")} trials` : `${total.toLocaleString("en")} of ${all.toLocaleString("en")} trials`;
  const part = total > PAGE_ROWS ? `, ${table.first + 1} to ${table.first + shown.length} shown` : "";
  document.getElementById("trial-count").textContent = total ? found + part : `No trial matches; there are ${all.toLocaleString("en")}.`;
  const pages = Math.max(1, Math.ceil(total / PAGE_ROWS));
  document.getElementById("trial-page").textContent = `page ${Math.floor(table.first / PAGE_ROWS) + 1} of ${pages}`;
  document.getElementById("trial-back").disabled = table.first === 0;
  document.getElementById("trial-next").disabled = table.first + PAGE_ROWS >= total;
  for (const heading of document.querySelectorAll("#trial-table th")) sortMark(heading);
}

function sortMark(heading) {
  const on = heading.dataset.key === table.sort;
  heading.setAttribute("aria-sort", on ? (table.down ? "descending" : "ascending") : "none");
  heading.querySelector(".arrow").textContent = on ? (table.down ? "↓" : "↑") : "";
}

function trialRow(row) {
  const line = document.createElement("tr");
  for (const column of page.columns) {
    const cell = document.createElement("td");
    if (!column.words) cell.className = "number";
    else if (textOf(column, row).length > 40) cell.className = "long";
    cell.append(...cellContent(column, row));
    line.append(cell);
  }
  return line;
}

function cellContent(column, row) {
  const value = column.values[row];
  if (column.key === "status") {
    const word = document.createElement("span");
    word.textContent = textOf(column, row);
    word.className = `status-word ${/^[a-z]+$/.test(word.textContent) ? word.textContent : ""}`;
    return [word];
  }
  if (column.words) return [textOf(column, row)];
  if (value === null) return ["–"];
  if (column.kind === "loss") return [value.toFixed(4)];
  if (column.kind === "rate") return rate(value);
  return [Number.isInteger(value) ? (column.key === "seed" ? String(value) : value.toLocaleString("en")) : value.toFixed(1)];
}

function rate(value) {
  const digits = Number(value.toPrecision(3)).toString();
  if (!(value > 0)) return [digits];
  const power = document.createElement("span");
  power.className = "exponent";
  const exponent = document.createElement("sup");
  exponent.textContent = Math.log2(value).toFixed(2).replace("-", "−");
  power.append("2", exponent);
  return [digits, power];
}

function heading(column) {
  const cell = document.createElement("th");
  cell.scope = "col";
  cell.dataset.key = column.key;
  if (!column.words) cell.className = "number";
  const button = document.createElement("button");
  button.type = "button";
  const arrow = document.createElement("span");
  arrow.className = "arrow";
  arrow.setAttribute("aria-hidden", "true");
  button.append(column.heading, arrow);
  button.addEventListener("click", () => {
    table.down = table.sort === column.key && !table.down;
    table.sort = column.key;
    table.first = 0;
    refreshTrials();
  });
  cell.append(button);
  return cell;
}

function chooser(column) {
  const label = document.createElement("label");
  const select = document.createElement("select");
  select.dataset.key = column.key;
  select.append(new Option("all", ""), ...column.words.map((word, at) => new Option(word.slice(0, 60) || "–", String(at))));
  select.addEventListener("change", () => {
    if (select.value === "") delete table.chosen[column.key];
    else table.chosen[column.key] = Number(select.value);
    table.first = 0;
    refreshTrials();
  });
  label.append(column.heading, select);
  return label;
}

function startTrials() {
  const body = document.querySelector("#trial-table tbody");
  if (!body) return;
  const line = document.createElement("tr");
  line.append(...page.columns.map(heading));
  document.querySelector("#trial-table thead").append(line);
  const several = (column) => ["rule", "model", "status"].includes(column.key) && column.words.length > 1;
  document.getElementById("trial-selects").append(...page.columns.filter(several).map(chooser));
  const search = document.getElementById("trial-search");
  search.addEventListener("input", () => {
    table.search = search.value;
    table.first = 0;
    refreshTrials();
  });
  const turn = (by) => {
    table.first += by;
    showTrials();
    remember();
  };
  document.getElementById("trial-back").addEventListener("click", () => turn(-PAGE_ROWS));
  document.getElementById("trial-next").addEventListener("click", () => turn(PAGE_ROWS));
  document.getElementById("trial-clear").addEventListener("click", () => {
    Object.assign(table, { search: "", chosen: {}, sort: null, down: false, first: 0 });
    putInto();
    refreshTrials();
  });
  Object.assign(table, recalled());
  putInto();
  refreshTrials();
}

function putInto() {
  document.getElementById("trial-search").value = table.search;
  for (const select of document.querySelectorAll("#trial-selects select")) {
    const chosen = table.chosen[select.dataset.key];
    select.value = chosen === undefined ? "" : String(chosen);
  }
}
