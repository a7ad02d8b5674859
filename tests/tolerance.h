/* SPDX-License-Identifier: Apache-2.0 */
/* tolerance.h: every tolerance of the tests that compare numbers, each with
   its reason.  Changed only in review.  K = length of the reduction.       */
#ifndef AMPC_TESTS_TOLERANCE_H
#define AMPC_TESTS_TOLERANCE_H

/* Free-running training beside PyTorch, fp32: both sum in other orders, and
   the difference grows with the steps. */
#define TOL_TRACE_LOSS 1e-4 /* relative */
#define TOL_TRACE_NORM 1e-3 /* relative; a norm adds the errors of all */

/* Five steps of small models in the frameworks' fp32, which sum in other
   orders: loss and parameters, relative to 1 + magnitude. */
#define TOL_EXPORTERS 5e-5

/* Teacher-forced: one forward and backward from equal parameters. */
#define TOL_FORCED_LOSS 1e-5 /* relative                                    */
#define TOL_SECOND_GRAD                                                        \
    1e-4 /* of the gradient's norm, with one inside        */
#define TOL_FORCED_GRAD 1e-3 /* of the gradient's norm                      */
/* A gradient that is zero in exact arithmetic (a bias in front of a batch
   norm) is rounding noise: it is held to this part of the whole norm. */
#define TOL_FORCED_FLOOR 1e-6

/* bf16 training: distance of the loss from fp32, as a multiple of the largest
   distance of six PyTorch bf16 runs with 1e-6 weight noise, with a floor. */
#define TOL_BF16_FACTOR 2.0
#define TOL_BF16_FLOOR  1e-3

/* Beside the same roundings in PyTorch, whose sums have another order: a fifth
   of one rounding of fp16.                                                  */
#define TOL_LEVEL_LOSS 1e-4

/* Compiled ops beside the interpreter, and one device beside another, as a part
   of the tensor's largest magnitude: the interpreter rounds each node once from
   double; compiled fp32 arithmetic may err by some units at every node and sums
   in orders of its own, and a 16-bit rounding may then fall to the other side.
 */
#define TOL_OUTPUT_F16  (6.0 / 2048)
#define TOL_OUTPUT_BF16 (6.0 / 256)
#define TOL_OUTPUT_F32  (128.0 / 16777216)
#define TOL_OUTPUT_F64  1e-11

/* Training on one device beside another: {loss, gradient norm, part of a
   tensor's own norm, part of the norm of its kind}.  fp32: the asked 1e-5;
   a norm adds the errors of all.  16 bits: roundings that fall to the other
   side in forward and backward, some times what was ever seen.              */
#define TOL_DEVICE_FP32                                                        \
    { 1e-5, 1e-4, 1e-5, 1e-6 }
#define TOL_DEVICE_FP16                                                        \
    { 1e-3, 4e-3, 4e-3, 4e-4 }
#define TOL_DEVICE_BF16                                                        \
    { 5e-3, 2e-2, 2e-2, 2e-3 }

/* Some dozen updates in f32 beside the same in double, as a part of a tensor's
   largest magnitude. */
#define TOL_UPDATE 4e-6

/* Losses of five steps of a recipe beside PyTorch in f64, relative to
   1 + magnitude. */
#define TOL_RECIPE 1e-5

/* Losses and parameters of 10 steps with adapters beside PEFT in f64, and a
   merged weight beside its adapter, of the largest magnitude. */
#define TOL_LORA 1e-5

/* Twenty steps of an optimizer in f32 beside its source in double, as a part
   of a tensor's largest magnitude: some ten roundings of 6e-8. */
#define TOL_OPTIMIZER 1e-6

/* Losses, norms and weights of twenty steps of ranks beside one process that
   accumulates: sums of four in another order, or sums of sums, differ in the
   last bits of f32; an optimizer multiplies the difference by at most lr/eps
   <= 1. */
#define TOL_RANKS 1e-6

/* The same in fp16, sums in another order: the last bit of a sum rounds a
   16-bit copy or activation the other way, and all results are as if rounded
   once. */
#define TOL_RANKS_16 0x1p-11

/* A loss and its gradient in f32 beside the same in double: sums of at most
   some dozen logarithms. */
#define TOL_LOSS 4e-6

/* The distance of a loss or gradient from fp64 in one draw, beside autocast's:
   both round what products read, which is most of it, and what else autocast
   rounds may cancel some of that by chance. */
#define TOL_AUTOCAST_DRAW 1.06
/* The geometric mean of five of them: where both have the same roundings and
   nothing else matters it is 1, but for sums in another order. */
#define TOL_AUTOCAST 1.01

/* A predicted error beside a measured one: a root mean square of 12 draws is
   itself known to a fifth, and a gradient jumps where rounding moves a value
   past a kink. */
#define TOL_BUDGET 2.0

/* A small graph beside the same graph in double, rounded to 16 bits at the same
   places: only the error of f32 arithmetic is left. */
#define TOL_ROUNDING 4e-6

/* Spectra of at most 600 numbers of at most 1, so of at most some hundreds, in
   f32 beside double: turns and two sums, rounded.  */
#define TOL_DFT 1e-4

/* Six steps of a small masked attention in 16 bits beside fp32: the roundings
   of its scores and probabilities. */
#define TOL_MASKED 0.02

/* Random graphs, as a part of an output's largest magnitude: errors of sums
   pass through some twenty ops; beside 16-bit values one rounding that falls to
   the other side does, a few times over.  The floor is for differences of
   nearly equal values. */
#define TOL_RANDOM_F32   1e-4
#define TOL_RANDOM_LOW   0.05
#define TOL_RANDOM_FLOOR 1e-5

/* Changed graphs, which nobody made well-conditioned: by how much more than
   their numbers move with the operands by an ulp of 16 bits, or some of f32:
   each of a graph's ops rounds. */
#define TOL_CHANGED_MOVED 100

/* Steps of a 16-bit model without its roundings beside steps in double, as a
   part of a parameter's change: numbers of the model and of gradient rules are
   constants of 16 bits, rounded once. */
#define TOL_RANDOM_CONSTANTS 0x1p-8

/* A product on the GPU beside a sum in double, relative: fp32 sums of at most
   some dozens of terms; 16-bit results are rounded once. */
#define TOL_PRODUCT_F32  1e-6
#define TOL_PRODUCT_F16  0x1p-11
#define TOL_PRODUCT_BF16 0x1p-8

/* A 3x3 convolution by 2x2 tiles beside double, as a part of the sum of the
   magnitudes of its products: of 64 channels or 512 positions, with the sums
   of four before and of nine behind them.                                   */
#define TOL_FILTERED 0x1p-21

/* Losses and running statistics of a few steps in fp32 beside PyTorch's, all of
   them below 2: the order of sums. */
#define TOL_STATE 4e-6

/* A gradient at a kink, of 1 + its size: it is exact, but for constants and
   quotients rounded to fp32 in another order. */
#define TOL_KINK 2e-6

/* A gradient along a direction beside the central difference with step 1e-6, in
   double, as a part of the sum of its terms: the difference cancels ten of
   sixteen digits, and constants of f32 graphs are rounded to fp32. */
#define TOL_SLOPE 1e-6

#endif
