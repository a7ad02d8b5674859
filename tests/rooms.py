#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rooms (folders of sources) and which calls which, read from the objects.

    tests/rooms.py            compares the calls with tests/rooms.txt
    tests/rooms.py --picture  writes docs/internals/rooms.svg from rooms.txt

rooms.txt lists the rooms, lowest first, and the allowed edges. A room may call a
lower one that stands in its line; no edge leads upwards, so there is no circle.
An edge that is not needed fails the test too. Inside a room at most three files
call each other in a circle.
"""
import collections
import os
import re
import sys

TOPS = ("ir", "passes", "codegen", "frontend", "runtime")
LIST, PICTURE = "tests/rooms.txt", "docs/internals/rooms.svg"
SYMBOLS = "tests/symbols.txt"  # of nm, archive by archive: tests/BUILD
FEW = 3  # files of the largest circle inside a room


# ---- the list ---------------------------------------------------------------

class Rooms:
    def __init__(self, path):
        self.floor, self.down, self.header = {}, set(), {}
        self.stand_ins = set()
        for number, line in enumerate(open(path), 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            kind, _, line = line.partition(" ")
            name, _, calls = line.partition(":")
            if kind == "header" and calls.strip() in self.floor:
                self.header[name.strip()] = calls.strip()
                continue
            if kind == "library":
                self.stand_ins.add(name.strip())
                continue
            if kind != "room":
                sys.exit(f"{path}:{number}: {kind} {line}")
            self.floor[name.strip()] = len(self.floor)
            self.down |= {(name.strip(), to) for to in calls.split()}


# ---- the objects ------------------------------------------------------------

def sources():
    found = collections.defaultdict(list)
    for top in TOPS:
        for folder, _, files in os.walk(top, followlinks=True):
            for name in files:
                if name.endswith(".c"):
                    found[top, name[:-2]].append(folder + "/" + name)
    return found


def objects(text):
    """(archive, object, functions, all that it defines, all that it wants)."""
    for part in re.split(r"^archive ", text, flags=re.M)[1:]:
        archive, _, members = part.partition("\n")
        for member in re.split(r"\n(?=\S+\.o:\n)", "\n" + members)[1:]:
            name, _, rest = member.partition(":\n")
            rows = [r.split() for r in rest.split("\n") if r.strip()]
            yield (archive, name.strip().replace(".pic.o", ".o")[:-2],
                   [r[-1] for r in rows if r[-2] in "TW"],
                   [r[-1] for r in rows if r[-2] in "TWDRB"],
                   [r[-1] for r in rows if r[-2] == "U"])


def source_of(files, defined):
    """Of several files with one name, the one that defines these."""
    if len(files) > 1:
        files = [f for f in files if defined and all(
            re.search(r"^\S.*\b%s\b" % d, open(f).read(), re.M)
            for d in defined[:3])]
    return files[0] if len(files) == 1 else None


def calls(text):
    """{file: {file it calls: a function}}; a file without a function that
    others call has no part in a circle."""
    files, home, wants = sources(), {}, collections.defaultdict(set)
    for archive, name, functions, defined, wanted in objects(text):
        top = next(t for t in archive.split("/") if t in TOPS)
        file = source_of(files.get((top, name), []), defined)
        if file:
            home.update((f, file) for f in functions)
            wants[file] |= set(wanted)
    graph = collections.defaultdict(dict)
    for file, wanted in wants.items():
        for symbol in sorted(wanted):
            if home.get(symbol, file) != file:
                graph[file].setdefault(home[symbol], symbol)
    return graph


def circles(graph):
    """Sets of nodes that reach each other (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in graph.get(node, ()):
            if to not in index:
                visit(to)
            if to in stack:
                low[node] = min(low[node], low[to])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    sys.setrecursionlimit(10000)
    for node in list(graph):
        if node not in index:
            visit(node)
    return [c for c in found if len(c) > 1]


# ---- the check --------------------------------------------------------------

def room_of(file):
    return os.path.dirname(file)


def edges(graph):
    found = {}
    for file, to in graph.items():
        for other, symbol in to.items():
            edge = room_of(file), room_of(other)
            if edge[0] != edge[1]:
                found.setdefault(edge, f"{file} calls {symbol} of {other}")
    return found


def includes():
    """(file, the header of the product that it includes)"""
    for top in TOPS:
        for folder, _, files in os.walk(top, followlinks=True):
            for file in sorted(files):
                if not file.endswith((".c", ".h")):
                    continue
                for header in re.findall(r'^#include "([^"]+)"',
                                         open(f"{folder}/{file}").read(), re.M):
                    if header.startswith(tuple(t + "/" for t in TOPS)):
                        yield f"{folder}/{file}", header


def included_above(pairs, rooms):
    """Files that include a header of a higher room, and header lines that no
    include needs."""
    needed = set()

    def stands(file):
        return rooms.floor.get(rooms.header.get(file, room_of(file)))

    for file, header in pairs:
        own, folder = stands(file), rooms.floor.get(room_of(header))
        if own is None:
            yield f"{file} is in no room of {LIST}"
        elif stands(header) is None:
            yield f"{header} is in no room of {LIST}"
        elif stands(header) > own:
            yield f"{file} may not include {header}"
        elif folder is None or folder > own:
            needed.add(header)
    for header in sorted(set(rooms.header) - needed):
        yield f"{header}: no include needs its line, take it out"


def defects(graph, rooms):
    for file in sorted(rooms.stand_ins - {f for to in graph.values() for f in to}):
        yield f"{file}: no call needs its line, take it out"
    graph = {f: {t: s for t, s in to.items() if t not in rooms.stand_ins}
             for f, to in graph.items()}
    found = edges(graph)
    for edge, example in sorted(found.items()):
        unknown = [r for r in edge if r not in rooms.floor]
        if unknown:
            yield f"{unknown[0]} is not a room of {LIST}"
        elif edge not in rooms.down:
            yield f"{edge[0]} may not call {edge[1]}: {example}"
    for edge in sorted(rooms.down):
        if edge not in found:
            yield f"{edge[0]} > {edge[1]}: no call needs it, take it out"
    for a, b in sorted(rooms.down):
        if rooms.floor.get(a, 0) <= rooms.floor.get(b, 0):
            yield f"{a} is not above {b}: it may not call it"
    for room in rooms.floor:
        own = {f: [t for t in to if room_of(t) == room]
               for f, to in graph.items() if room_of(f) == room}
        for circle in circles(own):
            if len(circle) > FEW:
                yield (f"{room}: {len(circle)} files call in a circle, {FEW} "
                       f"may: {' '.join(sorted(circle))}")


def selftest():
    """A check that cannot fail is none."""
    rooms = Rooms(os.devnull)
    rooms.floor, rooms.down = {"a": 0, "b": 1}, {("b", "a")}
    up = {"a/x.c": {"b/y.c": "f"}, "b/y.c": {"a/x.c": "g"}}
    assert any("a may not call b" in d for d in defects(up, rooms))
    assert any("no call needs it" in d for d in defects({}, rooms))
    rooms.stand_ins = {"b/y.c"}
    assert not any("may not call" in d for d in defects(up, rooms))
    assert any("y.c: no call needs" in d for d in defects({}, rooms))
    rooms.stand_ins = set()
    rooms.down |= {("a", "b")}
    assert any("a is not above b" in d for d in defects(up, rooms))
    ring = {f"a/{i}.c": {f"a/{(i + 1) % 5}.c": "f"} for i in range(5)}
    rooms.down = set()
    assert any("5 files call in a circle" in d for d in defects(ring, rooms))
    rooms.header = {}
    low = [("a/x.c", "b/y.h")]
    assert any("may not include b/y.h" in d for d in included_above(low, rooms))
    rooms.header = {"b/y.h": "a"}
    assert not list(included_above(low, rooms))
    assert any("no include needs" in d for d in included_above([], rooms))
    few = {f"a/{i}.c": {f"a/{(i + 1) % FEW}.c": "f"} for i in range(FEW)}
    assert not any("circle" in d for d in defects(few, rooms))


# ---- the picture ------------------------------------------------------------

def picture(rooms):
    """Each room on the floor above all that it calls."""
    level = {}
    for room in rooms.floor:
        level[room] = max((level[b] + 1 for a, b in rooms.down if a == room),
                          default=0)
    across, place = collections.Counter(), {}
    top = max(level.values())
    for room in sorted(rooms.floor, key=lambda r: (level[r], r)):
        place[room] = (20 + 160 * across[level[room]],
                       20 + 70 * (top - level[room]))
        across[level[room]] += 1
    width, height = 20 + 160 * max(across.values()), 70 * (top + 1) + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
           f'height="{height}" font-family="sans-serif" font-size="13">',
           "<!-- Written by tests/rooms.py from tests/rooms.txt -->",
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for a, b in sorted(rooms.down):
        (x, y), (u, v) = place[a], place[b]
        out.append(f'<line x1="{x + 70}" y1="{y + 15}" x2="{u + 70}" '
                   f'y2="{v + 15}" stroke="#999"/>')
    for room, (x, y) in sorted(place.items()):
        out.append(f'<rect x="{x}" y="{y}" width="140" height="30" rx="4" '
                   'fill="#eef" stroke="#446"/>')
        out.append(f'<text x="{x + 70}" y="{y + 20}" text-anchor="middle">'
                   f"{room}</text>")
    return "\n".join(out + ["</svg>", ""])


def main(args):
    rooms = Rooms(LIST)
    if args == ["--picture"]:
        with open(PICTURE, "w") as f:
            f.write(picture(rooms))
        return 0
    selftest()
    graph = calls(open(SYMBOLS).read())
    if len(graph) < 200:
        print(f"{SYMBOLS}: only {len(graph)} files")
        return 1
    pairs = list(includes())
    if len(pairs) < 1000:
        print(f"only {len(pairs)} includes")
        return 1
    found = list(defects(graph, rooms)) + list(included_above(pairs, rooms))
    if open(PICTURE).read() != picture(rooms):
        found.append(f"{PICTURE} is old: tests/rooms.py --picture")
    print("\n".join(found[:40]))
    return 1 if found else 0


sys.exit(main(sys.argv[1:]))
