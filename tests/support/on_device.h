/* SPDX-License-Identifier: Apache-2.0 */
/* on_device.h: IR text on either device, "cpu" or "cuda", which is the
   simulated GPU. */
#ifndef AMPC_TESTS_SUPPORT_ON_DEVICE_H
#define AMPC_TESTS_SUPPORT_ON_DEVICE_H

#include "tests/support/compiled.h"

/* Compiled once per process (by the address of the text, the device and the
   options, which are base and more together); for "cuda" every call resets
   the simulated machine. */
const Compiled *compile_on(const char *device, const char *text,
                           const char *base, const char *more);
/* With two threads; max_skipped as in ampc_options; a failure ends the test
   case.                                                                     */
ampc_session *open_on(const Compiled *c, const char *device, int max_skipped);

#endif
