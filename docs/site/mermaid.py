"""Draw the Mermaid blocks of the documents as pictures, after one was changed: ``python -m docs.site.mermaid SCRIPT``.

SCRIPT is `mermaid.min.js` of the npm package `mermaid`. It needs Chromium and selenium. The site shows the pictures, so
that no reader's browser loads a script for them.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from selenium import webdriver

from .drawing import PALETTE, STYLE
from .transforms import picture_of

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
STANDINS = {name: light for name, (light, _) in PALETTE.items()}
OPTIONS = {
    "startOnLoad": False,
    "theme": "base",
    "flowchart": {"htmlLabels": False, "useMaxWidth": True},
    "htmlLabels": False,
    "deterministicIds": True,
    "fontFamily": "sans-serif",
    "themeVariables": {
        "background": STANDINS["paper"],
        "primaryColor": STANDINS["soft"],
        "primaryTextColor": STANDINS["ink"],
        "primaryBorderColor": STANDINS["line"],
        "secondaryColor": STANDINS["accent-soft"],
        "secondaryTextColor": STANDINS["ink"],
        "secondaryBorderColor": STANDINS["accent"],
        "tertiaryColor": STANDINS["paper"],
        "tertiaryTextColor": STANDINS["ink"],
        "tertiaryBorderColor": STANDINS["line"],
        "lineColor": STANDINS["line"],
        "textColor": STANDINS["ink"],
        "edgeLabelBackground": STANDINS["paper"],
        "clusterBkg": STANDINS["paper"],
        "clusterBorder": STANDINS["line"],
        "noteBkgColor": STANDINS["accent-soft"],
        "noteTextColor": STANDINS["ink"],
        "noteBorderColor": STANDINS["accent"],
        "actorLineColor": STANDINS["line"],
        "signalColor": STANDINS["ink"],
        "signalTextColor": STANDINS["ink"],
        "labelBoxBkgColor": STANDINS["soft"],
        "labelTextColor": STANDINS["ink"],
        "loopTextColor": STANDINS["ink"],
        "fontSize": "15px",
    },
}


def sources() -> dict[str, str]:
    """Return the Mermaid source of each picture, by the picture's name."""
    found = {}
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for source in re.findall(r"^```mermaid\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
            found[picture_of(source)] = source
    return found


def in_both_schemes(svg: str) -> str:
    """Return a picture whose colours are those of the reader's colour scheme."""
    of_attributes = ""
    for name, colour in STANDINS.items():
        svg = re.sub(rf"(?<!\"){colour}", f"var(--{name})", svg, flags=re.IGNORECASE)
        of_attributes += f"[fill='{colour}']{{fill:var(--{name})}}[stroke='{colour}']{{stroke:var(--{name})}}"
    return svg.replace("<style>", f"<style>{STYLE}{of_attributes}", 1) + "\n"


def main() -> None:
    wanted = sources()
    for stale in PICTURES.glob("mermaid-*.svg"):
        if stale.name not in wanted:
            stale.unlink()
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        page.write_text(f'<body><script src="{Path(sys.argv[1]).resolve().as_uri()}"></script></body>')
        driver.get(page.as_uri())
        driver.execute_script("mermaid.initialize(arguments[0])", OPTIONS)
        for number, (name, source) in enumerate(sorted(wanted.items())):
            drawn = driver.execute_async_script(
                "const done = arguments[2];"
                "const xml = svg => new XMLSerializer().serializeToString("
                "new DOMParser().parseFromString(svg, 'text/html').querySelector('svg'));"
                "mermaid.render(arguments[0], arguments[1]).then(r => done(xml(r.svg)), e => done(String(e)))",
                f"m{number}",
                source,
            )
            if not drawn.startswith("<svg"):
                raise SystemExit(f"{name}: {drawn}")
            (PICTURES / name).write_text(in_both_schemes(drawn))
    driver.quit()


if __name__ == "__main__":
    main()
