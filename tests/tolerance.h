/* SPDX-License-Identifier: Apache-2.0 */
/* tolerance.h: every tolerance of the tests that compare numbers, each with
   its reason.  Changed only in review.  K = length of the reduction.       */
#ifndef AMPC_TESTS_TOLERANCE_H
#define AMPC_TESTS_TOLERANCE_H

/* Free-running training compared with PyTorch, fp32: both sum in different
   orders, and the difference grows with the steps. */
#define TOL_TRACE_LOSS 1e-4 /* relative */
#define TOL_TRACE_NORM                                                         \
    1e-3 /* relative; a norm adds the errors of all                            \
            gradients */

/* Five steps of small models compared with frameworks' fp32, which sum in
   other orders: loss and parameters, relative to 1 + magnitude. */
#define TOL_EXPORTERS 5e-5

/* Teacher-forced: one forward and backward from equal parameters. */
#define TOL_FORCED_LOSS 1e-5 /* relative                                    */
#define TOL_SECOND_GRAD                                                        \
    1e-4 /* of the gradient's norm, if rounding noise can be amplified */
#define TOL_FORCED_GRAD 1e-3 /* of the gradient's norm                      */
/* A gradient that is zero in exact arithmetic (a bias before a batch norm)
   is rounding noise: its limit is this fraction of the whole norm. */
#define TOL_FORCED_FLOOR 1e-6

/* bf16 training: distance of the loss from fp32, as a multiple of the largest
   distance of six PyTorch bf16 runs with 1e-6 weight noise, with a floor. */
#define TOL_BF16_FACTOR 2.0
#define TOL_BF16_FLOOR  1e-3

/* Compared with the same roundings in PyTorch, whose sums have another
   order: a fifth of one fp16 rounding. */
#define TOL_LEVEL_LOSS 1e-4

/* Compiled ops compared with the interpreter, and one device with another,
   relative to the tensor's largest magnitude: the interpreter rounds each node
   once from double; compiled fp32 arithmetic may err by some units at every
   node and sums in another order, so that a 16-bit rounding may then go the
   other way.
 */
#define TOL_OUTPUT_F16  (6.0 / 2048)
#define TOL_OUTPUT_BF16 (6.0 / 256)
#define TOL_OUTPUT_F32  (128.0 / 16777216)
#define TOL_OUTPUT_F64  1e-11

/* Training on one device compared with another: {loss, gradient norm,
   fraction of a tensor's own norm, fraction of the norm of its kind}. fp32:
   the required 1e-5; a norm adds the errors of all gradients. 16 bits:
   roundings that go the other way in forward and backward, at a few times
   the largest difference seen. f8: a number in the middle between two codes
   gets the one or the other, 6 to 25 % apart, by the last bit of its scale. */
#define TOL_DEVICE_FP32                                                        \
    { 1e-5, 1e-4, 1e-5, 1e-6 }
#define TOL_DEVICE_FP16                                                        \
    { 1e-3, 4e-3, 4e-3, 4e-4 }
#define TOL_DEVICE_BF16                                                        \
    { 5e-3, 2e-2, 2e-2, 2e-3 }
#define TOL_DEVICE_F8                                                          \
    { 4e-2, 6e-2, 2e-1, 2e-2 }

/* Some dozen updates in f32 compared with the same in double, relative to a
   tensor's largest magnitude. */
#define TOL_UPDATE 4e-6

/* Losses of five steps of a recipe compared with PyTorch in f64, relative to
   1 + magnitude. */
#define TOL_RECIPE 1e-5

/* Losses and parameters of 10 steps with adapters compared with PEFT in f64,
   and a merged weight with its adapter, relative to the largest magnitude. */
#define TOL_LORA 1e-5

/* Twenty steps of an optimizer in f32 compared with its source in double,
   relative to a tensor's largest magnitude: some ten roundings of 6e-8. */
#define TOL_OPTIMIZER 1e-6

/* Losses, norms and weights of twenty steps of ranks compared with one
   process that accumulates: sums of four in another order, or sums of sums,
   differ in the last bits of f32; an optimizer multiplies the difference by
   at most lr/eps <= 1. */
#define TOL_RANKS 1e-6

/* The same in fp16, with sums in another order: the last bit of a sum rounds
   a 16-bit copy or activation the other way, and all results differ by about
   one rounding. */
#define TOL_RANKS_16 0x1p-11

/* A loss and its gradient in f32 compared with the same in double: sums of
   at most some dozen logarithms. */
#define TOL_LOSS 4e-6

/* The distance of a loss or gradient from fp64 in one repetition, relative
   to autocast's: both round the operands of matrix products, which gives
   most of the distance; autocast's other roundings may cancel some of it by
   chance. */
#define TOL_AUTOCAST_DRAW 1.06
/* The geometric mean of five of these: it is 1, up to the order of sums, if
   both have the same roundings and nothing else matters. */
#define TOL_AUTOCAST 1.01

/* A predicted error compared with a measured one: a root mean square of 12
   repetitions is itself uncertain by a fifth, and a gradient jumps where
   rounding moves a value across a kink. */
#define TOL_BUDGET 2.0

/* What ampc audit says of a step with its policy lines, and what it says of the
   module compiled with them, of all that is to be halved: kernels of other
   sizes add in another order. */
#define TOL_AUDIT 1e-3

/* A small graph compared with the same graph in double, rounded to 16 bits
   at the same places: only the error of f32 arithmetic is left. */
#define TOL_ROUNDING 4e-6

/* Spectra of at most 600 numbers of at most 1, so that results are at most
   some hundreds, in f32 compared with double: rotations and two sums,
   rounded. */
#define TOL_DFT 1e-4

/* Six steps of a small masked attention in 16 bits compared with fp32: the
   roundings of its scores and probabilities. */
#define TOL_MASKED 0.02

/* Logits from kept keys and values compared with those of the whole window in
   bf16, relative to the largest: either is 0.003 from fp32. */
#define TOL_DECODE_BF16 0.01

/* Random graphs, relative to an output's largest magnitude: errors of sums
   pass through some twenty ops; with 16-bit values, a few times one rounding
   that goes the other way. The floor is for differences of nearly equal
   values. */
#define TOL_RANDOM_F32   1e-4
#define TOL_RANDOM_LOW   0.05
#define TOL_RANDOM_FLOOR 1e-5

/* Changed graphs, which may be badly conditioned: by how much more they may
   differ than when operands move by an ulp of 16 bits, or by some of f32:
   each of a graph's ops rounds. */
#define TOL_CHANGED_MOVED 100

/* Steps of a 16-bit model without its roundings compared with steps in
   double, relative to a parameter's change: constants of the model and of
   gradient rules have 16 bits, rounded once. */
#define TOL_RANDOM_CONSTANTS 0x1p-8

/* A matrix product on the GPU compared with a sum in double, relative: fp32
   sums of at most some dozens of terms; 16-bit results are rounded once. */
#define TOL_PRODUCT_F32  1e-6
#define TOL_PRODUCT_F16  0x1p-11
#define TOL_PRODUCT_BF16 0x1p-8

/* A 3x3 convolution by 2x2 tiles compared with double, relative to the sum
   of the magnitudes of its products: of 64 channels or 512 positions, with
   the sums of four terms before and of nine after them. */
#define TOL_FILTERED 0x1p-21
/* The same by 4x4 tiles, whose numbers amplify roundings. */
#define TOL_FILTERED_4 0x1p-20

/* Losses and running statistics of a few steps in fp32 compared with
   PyTorch's, all below 2: the order of sums. */
#define TOL_STATE 4e-6

/* Gradients that read f8 codes, compared with the interpreter's, by norms: a
   number whose last bit differs by the order of sums may get the next code. In
   16 bits the numbers differ more, and attention reads codes of its own
   result. */
#define TOL_KEEP_F32 3e-3
#define TOL_KEEP_LOW 0.02

/* A gradient at a kink, relative to 1 + its size: it is exact, except for
   constants and quotients rounded to fp32 in another order. */
#define TOL_KINK 2e-6

/* A gradient along a direction compared with the central difference with
   step 1e-6, in double, relative to the sum of its terms: the difference
   cancels ten of sixteen digits, and constants of f32 graphs are rounded to
   fp32. */
#define TOL_SLOPE 1e-6

#endif
