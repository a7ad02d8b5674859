# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of package `ampc`, for pip (PEP 517), without leaving a file
in the sources.

The compiler goes inside if it was built: out/bin/ampc of script/build, or the
file of --config-settings compiler=PATH ("none": without).  Then pip also makes a
command `ampc`, and platform=TAG says where the program runs (script/package
measures it).
"""
import base64
import hashlib
import os
import re
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
BUILT = os.path.join(HERE, "..", "..", "out", "bin", "ampc")
LICENCES = ("LICENSE", "NOTICE")

# pip writes its Python for "python"
COMMAND = b"""#!python
import importlib.util
import os
import sys
folder = importlib.util.find_spec("ampc").submodule_search_locations[0]
program = os.path.join(folder, "bin", "ampc")
os.execv(program, ["ampc"] + sys.argv[1:])
"""


def _version():
    with open(os.path.join(HERE, "ampc", "__init__.py"), encoding="utf-8") as f:
        return re.search(r'^__version__ = "(.*)"$', f.read(), re.M)[1]


def _compiler(settings):
    path = (settings or {}).get("compiler", "")
    if path == "none" or not path and not os.path.exists(BUILT):
        return None
    return path or BUILT


def _add(wheel, name, data, mode=0o644):
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.external_attr = (0o100000 | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(info, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"{name},sha256={digest.rstrip(b'=').decode()},{len(data)}\n"


def _metadata(version, compiler):
    return ("Metadata-Version: 2.1\nName: ampc\n"
            f"Version: {version}\n"
            "Summary: Compiles models into modules that train them, and runs "
            "these\nLicense: Apache-2.0\nRequires-Python: >=3.8\n" +
            ("Requires-External: C compiler (gcc or clang)\n" if compiler else "")
            ).encode()


def build_wheel(directory, config_settings=None, metadata_directory=None):
    version, compiler = _version(), _compiler(config_settings)
    platform = (config_settings or {}).get("platform", "linux_x86_64")
    tag = "py3-none-" + (platform if compiler else "any")
    name, record = f"ampc-{version}-{tag}.whl", ""
    info = f"ampc-{version}.dist-info"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        for file in sorted(os.listdir(os.path.join(HERE, "ampc"))):
            path = os.path.join(HERE, "ampc", file)
            if file.endswith((".py", ".typed")):
                with open(path, "rb") as f:
                    record += _add(wheel, f"ampc/{file}", f.read())
        if compiler:
            with open(compiler, "rb") as f:
                record += _add(wheel, "ampc/bin/ampc", f.read(), 0o755)
            record += _add(wheel, f"ampc-{version}.data/scripts/ampc", COMMAND,
                           0o755)
        for file in LICENCES:
            path = os.path.join(HERE, "..", "..", file)
            if os.path.exists(path):  # not in a copy of this folder alone
                with open(path, "rb") as f:
                    record += _add(wheel, f"{info}/licenses/{file}", f.read())
        record += _add(wheel, f"{info}/METADATA", _metadata(version, compiler))
        record += _add(wheel, f"{info}/WHEEL",
                       ("Wheel-Version: 1.0\nGenerator: ampc\nRoot-Is-Purelib:"
                        f" {'false' if compiler else 'true'}\nTag: {tag}\n"
                        ).encode())
        _add(wheel, f"{info}/RECORD", (record + f"{info}/RECORD,,\n").encode())
    return name
