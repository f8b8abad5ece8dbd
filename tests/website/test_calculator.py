"""The calculator page in a real browser: its numbers are Python's, and it says what it cannot
compute.
"""

import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

import pytest

import mupscale as mu
from mupscale.theory import DECAYS, OPTIMIZERS, RULES, Factors, derive
from website import formulas

ROOT = Path(__file__).parent.parent.parent
CONFIGURATION = """\
site_name: mupscale
use_directory_urls: false
plugins: []
theme:
  name: material
  font: false
  palette:
    - {media: "(prefers-color-scheme: light)", scheme: default}
    - {media: "(prefers-color-scheme: dark)", scheme: slate}
"""
BESIDE = ("Embedding", "Readout", "Gains and biases in blocks", "Final norm")
"""What optimizers of whole matrices leave to AdamW."""


@dataclass(frozen=True)
class Setting:
    """What a reader may choose."""

    target: dict[str, int]
    base: dict[str, int]
    rule: str = "gqa-mup"
    optimizer: str = "adamw"
    decay: str = "lr_coupled"
    fold: bool = True

    @property
    def choice(self) -> dict[str, object]:
        return {
            "rule": self.rule,
            "optimizer": self.optimizer,
            "decay": self.decay,
            "fold": self.fold,
        }

    @property
    def address(self) -> str:
        sizes = {
            f"{model}.{k}": v
            for model in ("target", "base")
            for k, v in getattr(self, model).items()
        }
        return "#" + urlencode(sizes | self.choice | {"fold": "yes" if self.fold else "no"})

    def expected(self, label: str) -> Factors:
        """By `derive` and `evaluate`."""
        scaling = derived(label, self.rule, self.optimizer, self.decay, self.fold)
        known = scaling.unit.dimensions()
        high, low = (
            {k: v for k, v in symbols(model).items() if k in known}
            for model in (self.target, self.base)
        )
        return scaling.evaluate(target=high, base=low)


def symbols(model: dict[str, int]) -> dict[str, int]:
    assert model["heads"] % model["kv_heads"] == 0
    return {
        "n": model["n"],
        "L": model["L"],
        "r": model["heads"] // model["kv_heads"],
        "inner": model["heads"] * model["head_dim"],
        "d_ff": model["d_ff"],
    }


@cache
def derived(label: str, rule: str, optimizer: str, decay, fold: bool):
    own = "adamw" if OPTIMIZERS[optimizer].whole_matrix and label in BESIDE else optimizer
    scaling = derive(formulas.UNITS[label], own, rule=rule, decay=decay)
    return scaling.fold() if fold and own != "adafactor" else scaling


def model_of(n=4096, L=32, heads=32, kv_heads=8, head_dim=128, d_ff=14336) -> dict[str, int]:
    return {
        "n": n,
        "L": L,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "d_ff": d_ff,
    }


def any_model(chance: random.Random) -> dict[str, int]:
    kv_heads = chance.randint(1, 16)
    return model_of(
        n=chance.randint(1, 20_000),
        L=chance.randint(1, 200),
        heads=kv_heads * chance.randint(1, 16),
        kv_heads=kv_heads,
        head_dim=chance.randint(1, 256),
        d_ff=chance.randint(1, 80_000),
    )


def any_settings(count: int, chance: random.Random) -> list[Setting]:
    """Each choice of rule, optimizer and decay in turn, with sizes at random."""
    choices = itertools.cycle(itertools.product(RULES, OPTIMIZERS, DECAYS))
    return [
        Setting(any_model(chance), any_model(chance), *choice, fold=chance.random() < 0.5)
        for choice in itertools.islice(choices, count)
    ]


SMALL = model_of(n=512, L=8, heads=4, kv_heads=1, d_ff=1792)
SETTINGS = {
    "adamw": Setting(model_of(), SMALL),
    "muon": Setting(model_of(heads=64), SMALL, optimizer="muon"),
    "adafactor does not fold": Setting(model_of(), SMALL, optimizer="adafactor"),
    "sgd in the forward pass": Setting(
        model_of(d_ff=999), SMALL, optimizer="sgd", decay="l2", fold=False
    ),
    "own": Setting(
        model_of(n=5120, heads=64),
        model_of(n=640, heads=12, kv_heads=12, head_dim=64),
        rule="complete-p",
    ),
}


@dataclass
class Visit:
    """An open page, and everything that went wrong on it."""

    page: object
    faults: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The page as mkdocs builds it, with nothing beside it."""
    folder = tmp_path_factory.mktemp("calculator")
    assets = folder / "docs" / "assets"
    assets.mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "calculator.md", folder / "docs")
    for name in ("calculator.js", "calculator.css"):
        shutil.copy(ROOT / "docs" / "assets" / name, assets)
    (assets / "formulas.js").write_text(formulas.script(), encoding="utf-8")
    (folder / "mkdocs.yml").write_text(CONFIGURATION, encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    subprocess.run(command, cwd=folder, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder / "site"


@pytest.fixture
def visit(browser, site) -> Iterator:
    contexts = []

    def open_page(address: str = "", *, width: int = 1440, **options) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        found = Visit(context.new_page())
        found.page.on(
            "console", lambda said: found.faults.append(f"console {said.type}: {said.text}")
        )
        found.page.on("pageerror", lambda error: found.faults.append(f"error: {error}"))
        found.page.on(
            "requestfailed", lambda request: found.faults.append(f"failed: {request.url}")
        )
        found.page.on("request", lambda request: _outside(request.url, site, found))
        found.page.goto((site / "calculator.html").as_uri() + address)
        return found

    yield open_page
    for context in contexts:
        context.close()


def _outside(url: str, site: Path, found: Visit) -> None:
    if not url.startswith((site.as_uri(), "data:")):
        found.faults.append(f"request: {url}")


def fill(page, setting: Setting) -> None:
    page.locator("#calculator-optimizer").select_option(setting.optimizer)
    page.locator("#calculator-rule").select_option(setting.rule)
    page.locator("#calculator-decay").select_option(setting.decay)
    page.locator("#calculator-fold").set_checked(setting.fold)
    for model in ("target", "base"):
        for name, value in getattr(setting, model).items():
            page.locator(f"#calculator-{model}-{name}").fill(str(value))


def table(page) -> dict[str, list[tuple[float, str]]]:
    """For each weight, its five numbers: in full, and as shown."""
    read = (
        "rows => rows.map(row => [...row.querySelectorAll('data')]"
        ".map(one => [Number(one.value), one.textContent]))"
    )
    cells = page.locator("#calculator-results tr").evaluate_all(read)
    return dict(zip(formulas.UNITS, cells, strict=True))


def clipboard(page) -> str:
    return page.evaluate("navigator.clipboard.readText()")


def agrees(page, setting: Setting) -> None:
    for label, cells in table(page).items():
        expected = astuple(setting.expected(label))
        assert [full for full, _ in cells] == pytest.approx(expected, rel=1e-12), label
        in_words = [shown for _, shown in cells if shown != "constant"]
        assert [float(text) for text in in_words] == [
            float(f"{v:.4g}") for v in expected[-len(in_words) :]
        ], label


def test_a_thousand_random_settings_have_the_numbers_of_python(visit):
    chance = random.Random(0)
    settings = any_settings(1000, chance)
    asked = [[one.choice, one.target, one.base] for one in settings]
    answers = visit().page.evaluate(
        "asked => asked.map(one => mupscaleCalculator.factors(...one))", asked
    )
    for setting, answer in zip(settings, answers, strict=True):
        # An answer holds all weights. One of them by chance: the exact numbers of sympy take their
        # time.
        place, label = chance.choice(list(enumerate(formulas.UNITS)))
        assert answer[place] == pytest.approx(astuple(setting.expected(label)), rel=1e-12, abs=0), (
            label,
            setting,
        )


@pytest.mark.parametrize("name", SETTINGS)
def test_the_table_shows_the_numbers_of_what_is_typed(visit, name):
    found = visit()
    fill(found.page, SETTINGS[name])
    agrees(found.page, SETTINGS[name])
    assert found.faults == []


@pytest.mark.parametrize("name", SETTINGS)
def test_the_copied_python_runs_and_gives_the_shown_numbers(visit, name, capsys):
    page = visit(SETTINGS[name].address).page
    page.get_by_role("button", name="Copy this Python").click()
    page.get_by_text("The Python is copied.").wait_for()
    namespace: dict = {}
    exec(clipboard(page), namespace)
    shown = {label: [full for full, _ in cells] for label, cells in table(page).items()}
    assert list(namespace["factors"]) == list(shown)
    for label, factors in namespace["factors"].items():
        assert shown[label] == pytest.approx(astuple(factors), rel=1e-12), label
    assert capsys.readouterr().out.splitlines() == [
        f"{label} {f}" for label, f in namespace["factors"].items()
    ]


@pytest.mark.parametrize(
    ("optimizer", "multipliers"), [("adamw", "fold"), ("muon", "hook"), ("sgd", "fold")]
)
def test_a_plan_for_a_llama_of_these_sizes_has_the_same_numbers(visit, optimizer, multipliers):
    target = model_of(n=96, L=3, heads=8, kv_heads=2, head_dim=16, d_ff=200)
    base = model_of(n=48, L=2, heads=3, kv_heads=3, head_dim=16, d_ff=64)
    plan = mu.plan(
        llama(target), base=llama(base).config, optimizer=optimizer, multipliers=multipliers
    )
    setting = Setting(
        target, base, optimizer=optimizer, decay=plan.decay, fold=multipliers == "fold"
    )
    shown = {
        label: [full for full, _ in cells]
        for label, cells in table(visit(setting.address).page).items()
    }
    places = {
        "model.embed_tokens": "Embedding",
        "self_attn.q_proj": "Query",
        "self_attn.k_proj": "Key, value",
        "self_attn.v_proj": "Key, value",
        "self_attn.o_proj": "Attention output",
        "mlp.gate_proj": "Feed-forward in",
        "mlp.down_proj": "Feed-forward out",
        "input_layernorm": "Gains and biases in blocks",
        "model.norm": "Final norm",
        "lm_head": "Readout",
    }
    for place, label in places.items():
        planned = next(p for name, p in plan.parameters.items() if name.endswith(f"{place}.weight"))
        assert shown[label] == pytest.approx(planned.values, rel=1e-12), label


def llama(sizes: dict[str, int]):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    )
    with torch.device("meta"):
        settings = dict(zip((*names, "intermediate_size"), sizes.values(), strict=True))
        return LlamaForCausalLM(LlamaConfig(**settings, vocab_size=64))


def test_a_wrong_input_says_so_beside_it_and_takes_the_numbers_away(visit):
    found = visit()
    for place, typed in enumerate(("", "40x6", "0", "-1", "1.5", "1e3")):
        said = f"“{typed}” is not a whole number from 1 to 1,000,000,000."
        refused(found.page, ("target-n", "base-d_ff")[place % 2], typed, said)
    heads = "32 query heads are not a multiple of 5. Choose 1, 2, 4, 8, 16 or 32."
    refused(found.page, "target-kv_heads", "5", heads)
    assert found.faults == []


def refused(page, name: str, typed: str, said: str) -> None:
    """What is typed is refused in these words, and a preset puts all right again."""
    box = page.locator(f"#calculator-{name}")
    box.fill(typed)
    assert page.locator(f"#{box.get_attribute('aria-describedby')}").inner_text() == said
    assert box.get_attribute("aria-invalid") == "true"
    assert page.locator("#calculator-results data").count() == 0
    assert page.get_by_role("button", name="Copy this Python").is_disabled()
    page.locator("#calculator-preset").select_option("llama-3-8b")
    assert box.get_attribute("aria-invalid") == "false"
    agrees(page, SETTINGS["adamw"])


def test_a_link_leads_to_the_same_numbers_and_so_does_the_address_bar(visit):
    setting = SETTINGS["own"]
    page = visit().page
    fill(page, setting)
    page.get_by_role("button", name="Copy a link").click()
    page.get_by_text("The link is copied.").wait_for()
    assert clipboard(page) == page.url
    other = visit("#" + page.url.partition("#")[2]).page
    agrees(other, setting)
    other.evaluate("address => { location.hash = address }", SETTINGS["muon"].address)
    other.wait_for_function("document.getElementById('calculator-optimizer').value === 'muon'")
    agrees(other, SETTINGS["muon"])


def test_an_address_that_makes_no_sense_is_the_beginning_and_stays_text(visit):
    found = visit("#rule=none&optimizer=<b>&target.n=<img src=x onerror=alert(1)>")
    assert found.page.locator("#calculator-target-n").input_value().startswith("<img")
    assert found.page.locator("#factors img").count() == 0
    assert found.page.locator("#calculator-rule").input_value() == "gqa-mup"
    agrees(visit("#what-the-factors-are").page, SETTINGS["adamw"])
    assert found.faults == []


def test_another_optimizer_brings_its_own_decay_and_what_a_reader_must_know(visit):
    page = visit().page
    page.locator("#calculator-optimizer").select_option("sgd")
    assert page.locator("#calculator-decay").input_value() == OPTIMIZERS["sgd"].decay
    assert (
        "Key, value: derived, one extrapolated step"
        in page.locator("#calculator-notes").inner_text()
    )
    page.locator("#calculator-optimizer").select_option("muon")
    assert "trained by AdamW, since muon" in page.locator("#calculator-notes").inner_text()
    page.locator("#calculator-optimizer").select_option("adafactor")
    assert (
        "Readout: a multiplier of 1/n cannot be folded"
        in page.locator("#calculator-notes").inner_text()
    )


def test_every_step_of_a_derivation_is_told(visit):
    page = visit(SETTINGS["adamw"].address).page
    page.get_by_text("Key, value: derived").click()
    told = page.locator("details[open] li").all_inner_texts()
    steps = derived("Key, value", "gqa-mup", "adamw", "lr_coupled", True).steps
    assert [text.splitlines()[0] for text in told] == [step.title for step in steps]
    assert all(
        step.reason in text and step.source in text for step, text in zip(steps, told, strict=True)
    )
    page.locator("#calculator-target-n").fill("2048")
    assert page.locator("details[open]").count() == 1


def test_formulas_are_shortest_where_the_heads_fill_the_width(visit):
    page = visit().page
    cell = page.locator(
        "#calculator-results tr:nth-child(3) [data-label='learning rate'] .calculator-formula"
    )
    assert cell.inner_text() == "(1 + √r)/(2n)"
    page.locator("#calculator-target-heads").fill("64")
    assert cell.inner_text() == "(√inner + √n√r)/(n(√inner + √n))"


def test_it_is_used_by_keyboard_alone(visit):
    page = visit().page
    page.locator("#calculator-preset").focus()
    reached = []
    for _ in range(40):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        if reached[-1] == "calculator-copy-link":
            break
        page.keyboard.press("Tab")
    inputs = [f"calculator-{model}-{name}" for name in model_of() for model in ("target", "base")]
    assert reached[:5] == [
        f"calculator-{name}" for name in ("preset", "rule", "optimizer", "decay", "fold")
    ]
    assert reached[5:17] == inputs
    assert reached[17:26] == ["SUMMARY"] * 9
    page.keyboard.press("Enter")
    page.get_by_text("The link is copied.").wait_for()


@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), (1440, "light")])
def test_it_fits_asks_nobody_and_has_no_serious_fault_of_accessibility(visit, width, scheme):
    from axe_playwright_python.sync_playwright import Axe

    found = visit(SETTINGS["sgd in the forward pass"].address, width=width, color_scheme=scheme)
    page = found.page
    page.locator("summary").nth(2).click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for wrong in (False, True):
        if wrong:
            page.locator("#calculator-target-kv_heads").fill("5")
        # Without a preload axe asks for no style sheet, which a browser refuses it in a page from a
        # folder.
        result = (
            Axe()
            .run(page, context={"include": [["#factors"]]}, options={"preload": False})
            .response
        )
        serious = [
            (one["id"], one["nodes"][0]["html"][:200])
            for one in result["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert "color-contrast" in {one["id"] for one in result["passes"]}
    assert found.faults == []


def test_the_exported_file_is_small_and_asks_for_no_evaluation(site):
    text = (site / "assets" / "formulas.js").read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    assert "eval" not in text.replace("scaling.evaluate(", "")
    own = (site / "assets" / "calculator.js").read_text(encoding="utf-8")
    assert not any(word in own for word in ("eval(", "Function(", "innerHTML", "Math.sqrt"))
