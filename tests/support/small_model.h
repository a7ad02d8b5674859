/* SPDX-License-Identifier: Apache-2.0 */
/* small_model.h: a model in a text, and rows that it trains on. */
#ifndef AMPC_TESTS_SUPPORT_SMALL_MODEL_H
#define AMPC_TESTS_SUPPORT_SMALL_MODEL_H

static const char small_model[] =
    "dim B = 4\n"
    "model m(x: f32[B,3]) {\n"
    "  h = tanh(Linear(x, units=5, scope=\"fc1\"))\n"
    "  return y = Linear(h, units=3, scope=\"fc2\")\n"
    "}\n"
    "train m {\n"
    "  loss = cross_entropy\n"
    "  optimizer = adamw, lr=1e-2\n"
    "}\n";

static const char small_data[] =
    "a,b,c,t\n1,2,3,0\n2,3,4,1\n0,1,2,2\n4,5,6,0\n"
    "3,4,5,1\n7,8,9,2\n1,0,1,2\n2,2,2,1\n3,1,2,0\n";

/* Feeds of the rows, d.csv. */
#define SMALL_FEED "--feed x=d.csv:0-2 --feed target=d.csv:t "

#endif
