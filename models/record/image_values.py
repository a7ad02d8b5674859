#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of each kind and what Pillow reads of them, resized with BILINEAR
(maintainers; needs Pillow and NumPy).

usage: image_values.py TESTS     writes, in the tests' folder,
  images/CLASS/FILE     PNG in colour, grey, with a palette, with alpha;
                        JPEG in colour, grey, progressive
  images.rgb, .grey     all of them as u8 [n, 3, 7, 9] and [n, 1, 7, 9]"""
import os
import sys

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 9, 7


def picture(seed, width, height, channels=3):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (4, 5, channels)).astype(np.uint8)
    x = x[..., 0] if channels == 1 else x
    return Image.fromarray(x).resize((width, height), Image.BICUBIC)


def main():
    folder = os.path.join(sys.argv[1], "images")
    for c in ("ant", "bee"):
        os.makedirs(os.path.join(folder, c), exist_ok=True)
    put = lambda name, image, **more: image.save(os.path.join(folder, name), **more)
    put("ant/colour.png", picture(1, 20, 15))
    put("ant/grey.png", picture(2, 9, 7, 1))
    put("ant/palette.png", picture(3, 13, 21).quantize(40))
    put("ant/alpha.png", picture(4, 11, 30, 4))
    put("bee/colour.jpg", picture(5, 33, 24), quality=92)
    put("bee/grey.jpg", picture(6, 16, 16, 1), quality=80)
    put("bee/progressive.jpg", picture(7, 40, 18), quality=75, progressive=True)
    put("bee/small.png", picture(8, 4, 3))
    for mode, name in (("RGB", "images.rgb"), ("L", "images.grey")):
        rows = []
        for c in sorted(os.listdir(folder)):
            for f in sorted(os.listdir(os.path.join(folder, c))):
                x = Image.open(os.path.join(folder, c, f)).convert(mode)
                x = np.asarray(x.resize((WIDTH, HEIGHT), Image.BILINEAR))
                rows.append(x.transpose(2, 0, 1) if mode == "RGB" else x[None])
        np.stack(rows).tofile(os.path.join(sys.argv[1], name))
        print(name, np.stack(rows).shape)


if __name__ == "__main__":
    main()
