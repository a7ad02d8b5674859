#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lays out what mkdocs builds the site from: the pages where they are, and
mkdocs.yml with the order of docs/index.md.

usage: site.py FOLDER
"""
import os
import re
import shutil
import sys

SETTINGS = """\
site_name: ampc
docs_dir: pages
use_directory_urls: false
theme:
  name: material
  font: false
  features: [navigation.sections, navigation.top, search.highlight,
             content.code.copy]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      toggle: {icon: material/weather-night, name: dark}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      toggle: {icon: material/weather-sunny, name: light}
plugins: [search]
markdown_extensions:
  - admonition
  - tables
  - toc: {permalink: true}
  - pymdownx.highlight
  - pymdownx.superfences
"""
TOP = ["README.md", "docs/index.md", "docs/install.md", "docs/tutorial-pytorch.md",
       "docs/tutorial-language.md", "docs/concepts.md"]
PARTS = [("Guides", "docs/guide"), ("Reference", "docs/reference"),
         ("Internals", "docs/internals"), ("Benchmarks", "docs/benchmarks")]


def title(path):
    with open(path, encoding="utf-8") as f:
        return re.sub(r"[`\"]", "", f.readline().lstrip("# ").strip())


def entry(path, indent=2):
    name = "Overview" if path == "README.md" else title(path)
    return f'{" " * indent}- "{name}": {path}\n'


def pages(folder):
    return sorted(os.path.join(folder, n) for n in os.listdir(folder)
                  if n.endswith(".md"))


def main():
    out = sys.argv[1]
    shutil.rmtree(out, ignore_errors=True)
    root = [n for n in os.listdir(".") if n.endswith(".md")]
    for name in root + ["LICENSE", "NOTICE", "models/README.md"]:
        to = os.path.join(out, "pages", name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(name, to)
    shutil.copytree("docs", os.path.join(out, "pages", "docs"))
    rest = [p for p in pages("docs") if p not in TOP]
    nav = "nav:\n" + "".join(map(entry, TOP))
    for name, folder in PARTS:
        nav += f"  - {name}:\n" + "".join(entry(p, 6) for p in pages(folder))
    nav += "  - More:\n" + "".join(
        entry(p, 6) for p in rest + ["models/README.md"] + sorted(
            n for n in root if n != "README.md"))
    with open(os.path.join(out, "mkdocs.yml"), "w", encoding="utf-8") as f:
        f.write(SETTINGS + nav)


main()
