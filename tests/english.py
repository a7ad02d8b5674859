#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the language of comments and messages, and reports on readability.

    english.py                    fails if a share is above its budget
    english.py --list [GLOB]      prints the comments and messages that count
    english.py --report [--dictionary FILE] [--sample N] [--seed S]
                                  figures for comments, messages and pages, and
                                  N sentences drawn at random (script/readability)

A comment counts against the budget if it begins with a pronoun or a relative
clause ("Of what ..", "That of ..", "By ..") or contains a form that stands for a
noun ("of those", "what is", "is no").  Such comments leave their subject out.
A message must not contain these forms at all.  A function's name that stands in
several files tells a reader too little: NAMES is how many there may be."""
import argparse
import collections
import fnmatch
import pathlib
import random
import re
import statistics
import sys

BUDGET = 2.5  # percent of all comments, for either kind
NAMES = 140  # static functions' names in more than one file; lower it, never raise it
FOLDERS = ["runtime", "ir", "passes", "codegen", "frontend", "tool", "run", "data",
           "report", "base", "tests"]
ENDINGS = {".c", ".h", ".cc", ".cuh", ".def"}

OPENING = re.compile(
    r"^(Of|That|Those|What|By|It|Its|They|Their|Which|Whose|Where|Whoever|Such|These|"
    r"The same|\.\.\.)\b(?!\()", re.I)
HIDDEN = re.compile(
    r"\b(of (what|which|those|whom)|of that(?=[,.;:)]|$)|that of|those of|"
    r"what (is|are|they|it|the)|is no|are no|so many)(?=[ ,.;:)]|$)")
DARK_MESSAGE = re.compile(
    r"\b(is no|are no|is none of|of which|of what|what says|whose|holds no|belongs to no)\b")

root = pathlib.Path.cwd()


def sources():
    return sorted(f for folder in FOLDERS for f in (root / folder).rglob("*")
                  if f.suffix in ENDINGS)


def plain(comment):
    """The text of a comment without its marks, on one line."""
    text = re.sub(r"^/\*|\*/$", "", comment)
    text = re.sub(r"(?m)^\s*//+ ?", "", text)
    return " ".join(text.replace("*", " ").split())


def comments(text):
    """(line, text) of each comment; rulers and licence lines are none."""
    found = [(m.start(), m.group()) for m in re.finditer(r"/\*.*?\*/", text, re.S)]
    found += [(m.start(), m.group())
              for m in re.finditer(r"(?m)^[ \t]*//.*(?:\n[ \t]*//.*)*", text)]
    for at, comment in sorted(found):
        words = plain(comment)
        if len(words) >= 20 and not words.startswith(("---", "SPDX-")):
            yield text.count("\n", 0, at) + 1, words


def messages(text):
    """(line, text) of each string for people: words, and no code."""
    bare = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    string = r'"(?:\\.|[^"\\\n])*"'
    for m in re.finditer(rf"{string}(?:\s*(?:PRI\w+\s*)?{string})*", bare):
        words = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', m.group()))
        code = re.search(r"[;{}]\\?n?$|[{}]|;.*;|^ {4}|\b(const|int|for|if) ?\(?|<\w+ |__", words)
        if len(words) >= 16 and words.count(" ") >= 2 and not code:
            yield bare.count("\n", 0, m.start()) + 1, words


def offenders(glob="*"):
    """Lists of (file, line, text): openings, hidden nouns, messages; all comments."""
    opening, hidden, dark, every = [], [], [], 0
    for path in sources():
        name = str(path.relative_to(root))
        if not fnmatch.fnmatch(name, glob):
            continue
        text = path.read_text()
        for line, words in comments(text):
            every += 1
            if OPENING.match(words):
                opening.append((name, line, words))
            if HIDDEN.search(words):
                hidden.append((name, line, words))
        if not name.startswith("tests/"):  # nobody but us reads theirs
            dark += [(name, line, words) for line, words in messages(text)
                     if DARK_MESSAGE.search(words)]
    return opening, hidden, dark, every


FUNCTION = re.compile(r"(?m)^static (?!inline)[^;={}()]*?\b(\w+)\(")


def shared_names():
    """{name: its files} of static functions that several files of the product have."""
    found = collections.defaultdict(set)
    for path in sources():
        name = str(path.relative_to(root))
        if path.suffix == ".c" and not name.startswith("tests/"):
            for function in FUNCTION.findall(path.read_text()):
                found[function].add(name)
    return {name: files for name, files in found.items() if len(files) > 1}


def check_names():
    shared = shared_names()
    print(f"{len(shared)} names of static functions stand in more than one file; "
          f"{NAMES} may")
    if len(shared) <= NAMES:
        return 0
    for name, files in sorted(shared.items(), key=lambda x: (-len(x[1]), x[0]))[:40]:
        print(f"  {name}: {', '.join(sorted(files))}")
    return 1


def check(glob, show):
    opening, hidden, dark, every = offenders(glob)
    failed = False
    for what, found in (("begin with a pronoun or a relative clause", opening),
                        ('contain "of which", "that of", "is no" or the like', hidden)):
        share = 100 * len(found) / max(every, 1)
        print(f"{len(found)} of {every} comments ({share:.1f} %) {what}; "
              f"the budget is {BUDGET:g} %")
        if show or share > BUDGET:
            for name, line, words in found:
                print(f"  {name}:{line}: {words[:100]}")
        failed |= share > BUDGET
    print(f"{len(dark)} messages with such forms; there must be none")
    for name, line, words in dark:
        print(f"  {name}:{line}: {words[:120]}")
    return 1 if failed or dark else 0


# ---- readability ------------------------------------------------------------

AUXILIARY = ("is are was were be been has have had does do did can cannot could may might "
             "must need needs will would shall should let lets don't doesn't isn't").split()
VERBS = ("accept add aim allow allocate append apply ask assign assume avoid become begin "
         "belong bind block bound broadcast build call cast change check choose clear clip "
         "close collect come compare compile compute contain continue convert copy cost count "
         "cover create cut decide declare define depend derive describe detect differ divide "
         "draw drop emit enable end ensure enter evaluate exceed exchange execute exist exit "
         "expand expect explain export express fail fetch fill find finish fit fold follow "
         "free fuse gather get give go group grow guard handle happen hold identify ignore "
         "import include increase infer initialise inline insert join keep know lack launch "
         "lead leave let lie limit link list load locate look lose lower make mark match mean "
         "measure meet merge move multiply name open order overlap overwrite own pack pad pass "
         "pay permit place plan point precede predict prefer print produce promise put raise "
         "read reach receive recompute record reduce refer refuse reject release rely remain "
         "remove rename repeat replace report request require reserve reset resolve restore "
         "return reuse round run save say scale scan schedule search see select send separate "
         "serve set share shift show shrink sit skip slice solve sort spell split stage stand "
         "start state stay step stop store subtract sum support sweep take tell test throw tie "
         "train transform transpose treat try turn unpack update use vary verify visit wait "
         "walk warn widen work wrap write").split()


def forms(verb):
    stem = verb[:-1] if verb.endswith("e") else verb
    third = verb[:-1] + "ies" if re.search(r"[^aeiou]y$", verb) else \
        verb + ("es" if re.search(r"(s|x|z|ch|sh|o)$", verb) else "s")
    past = verb[:-1] + "ied" if third.endswith("ies") else stem + "ed"
    return {verb, third, past}


KNOWN_VERBS = set(AUXILIARY).union(*map(forms, VERBS)) | set(
    "became began came chose chosen cut drew fell found gave given got held kept knew known "
    "laid led left lost made meant met read ran said saw seen sent shown stood taken told took "
    "went wrote written".split())


def sentences(text):
    for part in re.split(r"(?<=[.!?;])\s+(?=[A-Z`\"(])", text):
        words = re.findall(r"[A-Za-z][A-Za-z'-]*", part)
        if len(words) >= 3:
            yield part, words


def pages():
    for path in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("models/*.md")]):
        text = re.sub(r"(?ms)^```.*?^```|^\|.*?$|<!--.*?-->", "", path.read_text())
        for block in re.split(r"\n\s*\n|^#+ .*$|^[-*] ", text, flags=re.M):
            yield str(path.relative_to(root)), " ".join(block.split())


def corpus():
    """{kind: [(file, sentence, words)]}"""
    found = {"comments": [], "messages": [], "pages": []}
    for path in sources():
        name, text = str(path.relative_to(root)), path.read_text()
        for kind, part in (("comments", comments), ("messages", messages)):
            if kind == "messages" and name.startswith("tests/"):
                continue
            for _, words in part(text):
                found[kind] += [(name, s, w) for s, w in sentences(words)]
    found["pages"] = [(name, s, w) for name, text in pages() for s, w in sentences(text)]
    return found


def unknown_words(texts, dictionary):
    known = {w.strip().lower() for w in dictionary.read_text().splitlines()}
    for path in sources():  # names of the code
        known |= {w.lower() for w in re.findall(r"[A-Za-z]{2,}", re.sub(
            r"/\*.*?\*/", "", path.read_text(), flags=re.S))}
    for path in root.glob("docs/**/*.md"):  # the glossary: terms in bold
        known |= {w.lower() for t in re.findall(r"\*\*([^*]+)\*\*", path.read_text())
                  for w in t.split()}
    count = collections.Counter(
        w.lower() for _, _, words in texts for w in words
        if re.fullmatch(r"[a-z]{4,}", w))
    return [(n, w) for w, n in count.most_common()
            if w not in known and w.rstrip("s") not in known]


def report(args):
    found = corpus()
    for kind, texts in found.items():
        if not texts:
            continue
        lengths = sorted(len(words) for _, _, words in texts)
        bare = [t for t in texts if not KNOWN_VERBS & {w.lower() for w in t[2]}]
        longest = max(texts, key=lambda t: len(t[2]))
        dark = [t for t in texts if OPENING.match(t[1])]
        print(f"{kind}: {len(texts)} sentences; words: median "
              f"{statistics.median(lengths):.0f}, 90th percentile "
              f"{lengths[len(lengths) * 9 // 10]}, longest {lengths[-1]} ({longest[0]}); "
              f"{100 * len(bare) / len(texts):.0f} % have no verb of the list, "
              f"{100 * len(dark) / len(texts):.1f} % begin with a pronoun or relative clause")
    if args.dictionary:
        texts = [t for kind in found.values() for t in kind]
        words = unknown_words(texts, args.dictionary)
        print(f"{len(words)} words are in no dictionary, glossary or name of the code; "
              "most frequent: " + ", ".join(f"{w} ({n})" for n, w in words[:40]))
    draw = random.Random(args.seed)
    every = [(kind, t) for kind, texts in found.items() for t in texts]
    for kind, (name, sentence, _) in draw.sample(every, min(args.sample, len(every))):
        print(f"- {kind}, {name}: {sentence}")
    return 0


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--list", nargs="?", const="*", metavar="GLOB")
    ap.add_argument("--report", action="store_true")
    ap.add_argument("--dictionary", type=pathlib.Path)
    ap.add_argument("--sample", type=int, default=0)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    if args.report:
        return report(args)
    return check(args.list or "*", bool(args.list)) | check_names()


if __name__ == "__main__":
    sys.exit(main())
