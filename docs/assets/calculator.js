/* The calculator. Its formulas, names, notes and derivations are in formulas.js, which the build writes from
   mupscale.theory; here they are only evaluated and shown. */
(() => {
  "use strict";

  const data = window.mupscaleFormulas;
  const INPUTS = {
    n: "embedding width n",
    L: "blocks L",
    heads: "query heads",
    kv_heads: "key/value heads",
    head_dim: "head dimension",
    d_ff: "feed-forward width d_ff",
  };
  const MODELS = ["target", "base"];
  const LARGEST = 1e9;

  /* ---- numbers ---- */

  /** The symbols of the formulas; r and inner = heads × head_dim follow from the inputs. */
  const sizesOf = (given) => ({
    n: given.n,
    L: given.L,
    r: given.heads / given.kv_heads,
    inner: given.heads * given.head_dim,
    d_ff: given.d_ff,
  });

  const tableFor = ({ rule, optimizer, decay, fold }) => data.tables[`${rule} ${optimizer} ${decay}`][fold ? 1 : 0];

  const columnsFor = (choice) =>
    tableFor(choice).columns.map((place) => {
      const [code, standing, formulas, steps] = data.columns[place];
      return { code, standing, formulas, steps };
    });

  /** A formula at the target divided by the same at the base; 0 stays 0. As in Scaling.evaluate. */
  const ratio = (place, target, base) => {
    const high = data.functions[place](target);
    return high === 0 ? 0 : high / data.functions[place](base);
  };

  /** The five factors of each unit. */
  const factors = (choice, target, base) =>
    columnsFor(choice).map((column) => column.formulas.map((place) => ratio(place, sizesOf(target), sizesOf(base))));

  const divisors = (whole) => {
    const small = [];
    for (let k = 1; k * k <= whole; k += 1) if (whole % k === 0) small.push(k);
    return [...new Set([...small, ...small.map((k) => whole / k).reverse()])];
  };

  const listed = (numbers) => {
    const few = numbers.slice(0, 8).map(String);
    if (numbers.length > few.length) return `${few.join(", ")}, …`;
    return few.length === 1 ? few[0] : `${few.slice(0, -1).join(", ")} or ${few.at(-1)}`;
  };

  const isSize = (text) => /^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= LARGEST;

  /** The errors in the inputs of one model, by name. */
  const faultsOf = (given) => {
    const faults = {};
    for (const [name, text] of Object.entries(given)) {
      if (!isSize(text)) faults[name] = `“${text}” is not a whole number from 1 to ${LARGEST.toLocaleString("en")}.`;
    }
    const [heads, shared] = [Number(given.heads), Number(given.kv_heads)];
    if (!faults.heads && !faults.kv_heads && heads % shared) {
      faults.kv_heads = `${heads} query heads are not a multiple of ${shared}. Choose ${listed(divisors(heads))}.`;
    }
    return faults;
  };

  const numbersOf = (given) => Object.fromEntries(Object.entries(given).map(([name, text]) => [name, Number(text)]));

  /** As many digits as a plan shows. */
  const shown = (value) => String(Number(value.toPrecision(4)));

  /* ---- Python ---- */

  const literal = (values) =>
    `{${Object.entries(values)
      .map(([key, value]) => `"${key}": ${typeof value === "number" ? value : `"${value}"`}`)
      .join(", ")}}`;

  const python = (choice, target, base) => {
    const scalings = columnsFor(choice).map(({ code }, k) => `    "${data.units[k].label}": ${code},`);
    const given = {
      target: literal(sizesOf(target)),
      base: literal(sizesOf(base)),
      choices: literal({ rule: choice.rule, decay: choice.decay }),
      scalings: scalings.join("\n"),
    };
    // {{ and }} are braces, {name} is filled in: as in Python's str.format.
    return data.python.replace(/\{\{|\}\}|\{(\w+)\}/g, (text, name) => (name ? given[name] : text[0]));
  };

  /* ---- the state, and its address ---- */

  const asTexts = (sizes) => Object.fromEntries(Object.entries(sizes).map(([name, value]) => [name, String(value)]));

  const beginning = () => {
    const [first] = Object.values(data.presets);
    return {
      target: asTexts(first.target),
      base: asTexts(first.base),
      rule: data.rules.at(-1),
      optimizer: Object.keys(data.optimizers)[0],
      decay: Object.values(data.optimizers)[0],
      fold: true,
    };
  };

  const toHash = (state) => {
    const said = new URLSearchParams();
    for (const model of MODELS) for (const name in INPUTS) said.set(`${model}.${name}`, state[model][name]);
    for (const name of ["rule", "optimizer", "decay"]) said.set(name, state[name]);
    said.set("fold", state.fold ? "yes" : "no");
    return `#${said}`;
  };

  /** The state in an address; missing or invalid values get their defaults. */
  const fromHash = (hash) => {
    const said = new URLSearchParams(hash.slice(1));
    const state = beginning();
    for (const model of MODELS) {
      for (const name in INPUTS) state[model][name] = said.get(`${model}.${name}`) ?? state[model][name];
    }
    const known = { rule: data.rules, optimizer: Object.keys(data.optimizers), decay: data.decays };
    for (const name in known) if (known[name].includes(said.get(name))) state[name] = said.get(name);
    state.fold = said.get("fold") !== "no";
    return state;
  };

  const presetOf = (state) =>
    Object.keys(data.presets).find((name) =>
      MODELS.every((model) => Object.keys(INPUTS).every((k) => String(data.presets[name][model][k]) === state[model][k])),
    ) ?? "";

  /* ---- the page ---- */

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  const idOf = (model, name) => `calculator-${model}-${name}`;
  const get = (id) => document.getElementById(`calculator-${id}`);

  const select = (id, label, names, ...others) =>
    make(
      "div",
      { class: "calculator-choice" },
      make("label", { for: `calculator-${id}` }, label),
      make("select", { id: `calculator-${id}` }, ...names.map((name) => make("option", {}, name)), ...others),
    );

  // Shown when the numbers match no preset; it cannot be selected.
  const ownNumbers = () => make("option", { value: "", disabled: "" }, "own numbers");

  const choices = () =>
    make(
      "div",
      { class: "calculator-choices" },
      select("preset", "Start with", Object.keys(data.presets), ownNumbers()),
      select("rule", "Rule", data.rules),
      select("optimizer", "Optimizer", Object.keys(data.optimizers)),
      select("decay", "Weight decay", data.decays),
      make(
        "div",
        { class: "calculator-switch" },
        make("input", { type: "checkbox", id: "calculator-fold" }),
        make("label", { for: "calculator-fold" }, "fold multipliers into the weights, as a plan does"),
      ),
    );

  const sizeInput = (model, name) =>
    make("input", {
      id: idOf(model, name),
      type: "text",
      inputmode: "numeric",
      autocomplete: "off",
      "aria-label": `${INPUTS[name]}, ${model}`,
      "aria-describedby": `${idOf(model, name)}-fault`,
    });

  const sizeRow = (name) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, INPUTS[name]),
      ...MODELS.map((model) =>
        make(
          "td",
          {},
          sizeInput(model, name),
          make("span", { class: "calculator-fault", id: `${idOf(model, name)}-fault`, "aria-live": "polite" }),
        ),
      ),
    );

  const followsRow = (name, label) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, label),
      ...MODELS.map((model) => make("td", { id: idOf(model, name), class: "calculator-follows" })),
    );

  const sizes = () =>
    make(
      "table",
      { class: "calculator-sizes" },
      make("caption", {}, "Two models"),
      make(
        "thead",
        {},
        make("tr", {}, make("td"), make("th", { scope: "col" }, "target"), make("th", { scope: "col" }, "base, tuned")),
      ),
      make(
        "tbody",
        {},
        ...Object.keys(INPUTS).map(sizeRow),
        followsRow("r", "query heads per key/value head, r"),
        followsRow("inner", "heads × head dimension, inner"),
      ),
    );

  // Roles are explicit because narrow screens lay the table out as blocks, which removes them.
  const results = () =>
    make(
      "table",
      { class: "calculator-results", role: "table" },
      make("caption", {}, "Factors on the base values"),
      make(
        "thead",
        { role: "rowgroup" },
        make(
          "tr",
          { role: "row" },
          ...["weight", ...data.fields].map((label) => make("th", { scope: "col", role: "columnheader" }, label)),
        ),
      ),
      make("tbody", { role: "rowgroup", id: "calculator-results" }),
    );

  const page = () => [
    choices(),
    sizes(),
    results(),
    make("p", { id: "calculator-status", role: "status" }),
    make("ul", { id: "calculator-notes" }),
    make("h2", {}, "Why"),
    make("div", { id: "calculator-why" }),
    make("h2", {}, "The same in Python"),
    make("pre", { id: "calculator-python", tabindex: "0", role: "region", "aria-label": "Python code" }),
    make(
      "p",
      { class: "calculator-buttons" },
      make("button", { type: "button", id: "calculator-copy-python" }, "Copy this Python"),
      make("button", { type: "button", id: "calculator-copy-link" }, "Copy a link to these numbers"),
      make("span", { id: "calculator-copied", role: "status" }),
    ),
  ];

  /* ---- from state to page ---- */

  const showInputs = (state) => {
    for (const model of MODELS) for (const name in INPUTS) get(`${model}-${name}`).value = state[model][name];
    for (const name of ["rule", "optimizer", "decay"]) get(name).value = state[name];
    get("fold").checked = state.fold;
  };

  const showFaults = (model, faults) => {
    for (const name in INPUTS) {
      const input = get(`${model}-${name}`);
      input.setAttribute("aria-invalid", String(name in faults));
      const said = get(`${model}-${name}-fault`);
      if (said.textContent !== (faults[name] ?? "")) said.textContent = faults[name] ?? "";
    }
  };

  const showFollows = (model, given, faults) => {
    const known = faults.heads || faults.kv_heads ? {} : { r: given.heads / given.kv_heads };
    if (!faults.heads && !faults.head_dim) known.inner = given.heads * given.head_dim;
    for (const name of ["r", "inner"]) get(`${model}-${name}`).textContent = known[name] ?? "–";
  };

  /** The formula as text: the shorter one where heads × head_dim = n in both models. */
  const formulaText = (place, square) => data.formulas[place][square ? 1 : 0];

  const cell = (k, unit, place, value, square) => {
    const constant = unit.constant && k === 0;
    const number = value === null ? "–" : make("data", { value: String(value) }, constant ? "constant" : shown(value));
    const formula = constant ? "gains 1, biases 0" : formulaText(place, square);
    return make(
      "td",
      { role: "cell", "data-label": data.fields[k] },
      make("span", { class: "calculator-number" }, number),
      make("span", { class: "calculator-formula" }, formula),
    );
  };

  const resultRow = (unit, column, values, square) =>
    make(
      "tr",
      { role: "row" },
      make(
        "th",
        { scope: "row", role: "rowheader" },
        unit.label,
        ...(unit.shape ? [make("span", { class: "calculator-shape" }, unit.shape)] : []),
      ),
      ...column.formulas.map((place, k) => cell(k, unit, place, values && values[k], square)),
    );

  const showResults = (state, models) => {
    const values = models && factors(state, models.target, models.base);
    const square = models && MODELS.every((model) => sizesOf(models[model]).inner === models[model].n);
    const rows = columnsFor(state).map((column, k) =>
      resultRow(data.units[k], column, values ? values[k] : column.formulas.map(() => null), square),
    );
    get("results").replaceChildren(...rows);
    get("status").textContent = models ? "" : "Correct the inputs above to see the numbers.";
    get("notes").replaceChildren(...tableFor(state).notes.map((place) => make("li", {}, data.notes[place])));
  };

  const stepItem = (place) => {
    const [title, quantity, value, reason, source, standing] = data.steps[place];
    const mark = standing === "derived" ? "" : ` (${standing})`;
    return make(
      "li",
      {},
      make("strong", {}, title + mark),
      make("code", {}, `${quantity} = ${value}`),
      make("span", {}, `${reason}. `),
      make("cite", {}, source),
    );
  };

  const showWhy = (state) => {
    const open = new Set([...get("why").querySelectorAll("details[open]")].map((one) => one.dataset.unit));
    const parts = columnsFor(state).map((column, k) => {
      const { label } = data.units[k];
      const part = make(
        "details",
        { class: "calculator-steps", "data-unit": label },
        make("summary", {}, `${label}: ${column.standing}`),
        make("ol", {}, ...column.steps.map(stepItem)),
      );
      part.open = open.has(label);
      return part;
    });
    get("why").replaceChildren(...parts);
  };

  const showPython = (state, models) => {
    get("python").textContent = models ? python(state, models.target, models.base) : "";
    get("python").hidden = !models;
    get("copy-python").disabled = !models;
    get("copied").textContent = "";
  };

  const show = (state) => {
    const faults = Object.fromEntries(MODELS.map((model) => [model, faultsOf(state[model])]));
    for (const model of MODELS) {
      showFaults(model, faults[model]);
      showFollows(model, numbersOf(state[model]), faults[model]);
    }
    get("preset").value = presetOf(state);
    const right = MODELS.every((model) => Object.keys(faults[model]).length === 0);
    const models = right ? Object.fromEntries(MODELS.map((model) => [model, numbersOf(state[model])])) : null;
    showResults(state, models);
    showWhy(state);
    showPython(state, models);
  };

  /* ---- from page to state ---- */

  const stateOfInputs = () => {
    const texts = (model) =>
      Object.fromEntries(Object.keys(INPUTS).map((name) => [name, get(`${model}-${name}`).value.trim()]));
    return {
      target: texts("target"),
      base: texts("base"),
      rule: get("rule").value,
      optimizer: get("optimizer").value,
      decay: get("decay").value,
      fold: get("fold").checked,
    };
  };

  const changed = (event) => {
    const state = stateOfInputs();
    if (event.target === get("preset") && event.target.value) {
      for (const model of MODELS) state[model] = asTexts(data.presets[event.target.value][model]);
    }
    if (event.target === get("optimizer")) state.decay = data.optimizers[state.optimizer];
    if (event.target.tagName === "SELECT") showInputs(state);
    show(state);
    history.replaceState(null, "", toHash(state));
  };

  const addressOf = (state) => location.href.split("#")[0] + toHash(state);

  const copy = async (text, what) => {
    try {
      await navigator.clipboard.writeText(text);
      get("copied").textContent = `${what} is copied.`;
    } catch {
      get("copied").textContent = `The browser does not let this page copy. Copy this by hand: ${text}`;
    }
  };

  const addressed = () => {
    const state = fromHash(location.hash);
    showInputs(state);
    show(state);
  };

  const start = () => {
    const place = document.getElementById("factors");
    place.replaceChildren(...page());
    place.addEventListener("input", changed);
    get("copy-python").addEventListener("click", () => copy(get("python").textContent, "The Python"));
    get("copy-link").addEventListener("click", () => copy(addressOf(stateOfInputs()), "The link"));
    addEventListener("hashchange", addressed);
    addressed();
  };

  window.mupscaleCalculator = { factors, python };
  start();
})();
