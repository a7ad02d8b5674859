/* tolerance.h: every tolerance of the tests that compare numbers, each with
   its reason.  Changed only in review.  K = length of the reduction.       */
#ifndef AMPC_TESTS_TOLERANCE_H
#define AMPC_TESTS_TOLERANCE_H

/* Free-running training beside PyTorch, fp32: both sum in other orders, and
   the difference grows with the steps. */
#define TOL_TRACE_LOSS 1e-4 /* relative */
#define TOL_TRACE_NORM 1e-3 /* relative; a norm adds the errors of all       */

/* Teacher-forced: one forward and backward from equal parameters. */
#define TOL_FORCED_LOSS 1e-5 /* relative                                    */
#define TOL_FORCED_GRAD 1e-3 /* of the gradient's norm                      */
/* A gradient that is zero in exact arithmetic (a bias in front of a batch
   norm) is rounding noise: it is held to this part of the whole norm. */
#define TOL_FORCED_FLOOR 1e-6

/* bf16 training: distance of the loss from fp32, as a multiple of the largest
   distance of six PyTorch bf16 runs with 1e-6 weight noise, with a floor. */
#define TOL_BF16_FACTOR 2.0
#define TOL_BF16_FLOOR 1e-3

#endif
