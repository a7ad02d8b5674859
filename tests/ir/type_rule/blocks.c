/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.c: codes, scales and sums of blocks; sums of attention's gradient. */
#include "tests/ir/type_rule/type_rule.h"

const Row block_rows[] = {
    {"%x: bf16[2,32,64]", "%y = block_codes %x {columns=64}", "f8e4m3[64,64]"},
    {"%x: f32[96,160]", "%y = block_codes %x {columns=160, down=1}",
     "f8e4m3[160,96]"},
    {"%x: f16[160,64]", "%y = block_scales %x {columns=64}", "e8m0[1024]"},
    {"%x: f16[160,32]", "%y = block_scales %x {columns=32, down=1}",
     "e8m0[1024]"},
    {"%x: bf16[4,48,96]", "%y = block_sums %x {columns=96}", "f32[6,96]"},
    {"%x: bf16[48,96]", "%y = block_sums %x {columns=96}",
     "! with 96 columns does not divide"},
    {"%x: f16[96,64]", "%y = block_codes %x",
     "! with 0 columns does not divide into blocks of 32"},
    {"%x: f16[96,48]", "%y = block_codes %x {columns=48}",
     "! with 48 columns does not divide"},
    {"%x: f16[80,64]", "%y = block_scales %x {columns=64}",
     "! with 64 columns does not divide"},
    {"%x: f32[32,64]", "%y = block_codes %x {columns=576460752303423488}",
     "! with 576460752303423488 columns does not divide"},
    {"%x: f16[0,64]", "%y = block_scales %x {columns=64}",
     "! with 64 columns does not divide"},
    {"%x: i32[32,32]", "%y = block_codes %x {columns=32}", "! floating point"},
    {"%x: f16[2,0,3,4], %y: f16[2,0,1,4], %l: f32[2,1,0,2], %d: f32[2,0,1,1]",
     "%a, %s = attend_grad %x, %x, %x, %y, %l, %d {heads=[0,1,1,1,2,1], "
     "trans_b=1}",
     "! sums rows, wants one at least"}};
const int nblock_rows = sizeof block_rows / sizeof *block_rows;
