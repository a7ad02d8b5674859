# SPDX-License-Identifier: Apache-2.0
"""A test: NAME.c, its folder, the harness, and what it tests."""

def ampc_test(name, deps = [], data = [], timeout = "long"):
    """NAME_slow_test.c runs with script/test --slow only.

    Cases and helpers of x_test may stand in files of folder x, too."""
    folder = name[:-len("_test")]
    slow = name.endswith("_slow_test")
    native.cc_test(
        name = name,
        timeout = "eternal" if slow else timeout,
        srcs = [name + ".c"] + native.glob([folder + "/*.c", folder + "/*.h"]),
        data = data,
        env = {"AMPC_CACHE_DIR": "none"},  # nothing from other runs
        linkstatic = True,
        tags = ["slow"] if slow else [],
        deps = deps + ["//tests:harness"],
    )
