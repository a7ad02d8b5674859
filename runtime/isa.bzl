# SPDX-License-Identifier: Apache-2.0
"""The runtime's objects as they ship inside every train.so."""

# Optimisation: of what is compiled once, and of the files of each level.
COMMON_OPT = "-O2"
ISA_OPT = "-O3"

COPTS = [
    "-std=gnu17",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-g0",
    "-fomit-frame-pointer",
    "-fno-stack-protector",
    "-U_FORTIFY_SOURCE", # it aborts; a module never does
]

def room(name, **kwargs):
    """A room, or the part of one that the compiler sees too."""
    native.cc_library(
        name = name,
        copts = COPTS + [COMMON_OPT],
        alwayslink = True, # rooms and levels need each other
        linkstatic = True,
        **kwargs
    )

def isa_library(name, cpu, vectors, flags, srcs):
    """The per-ISA files, with the header and the flags of a row of isa.def."""
    native.cc_library(
        name = name,
        srcs = srcs,
        copts = COPTS + [
            flags,
            "'-DAMPC_SIMD=\"%s\"'" % vectors,
            "'-DAMPC_ISA_FLAGS=\"%s\"'" % flags,
        ] + select({
            "//:asan": ["-O1"], # at -O3 a sanitized kernel compiles for minutes
            "//:tsan": ["-O1"],
            "//conditions:default": [ISA_OPT],
        }),
        target_compatible_with = ["@platforms//cpu:" + cpu],
        linkstatic = True,
        alwayslink = True,
        deps = [":kernels"],
    )
