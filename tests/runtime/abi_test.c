/* SPDX-License-Identifier: Apache-2.0 */
/* abi_test.c: CONTRIBUTING.md's promise about the C API: structs and the
   table of functions only grow at their end, so that a host compiled with an
   older header of the same AMPC_ABI_VERSION keeps working. A new field or
   function gets a row; if a row fails, AMPC_ABI_VERSION must change. */
#include <stddef.h>
#include <string.h>

#include "runtime/ampc.h"
#include "tests/harness.h"

#define AT(type, field, offset)                                                \
    { #type, #field, offsetof(type, field), offset }

static const struct Place {
    const char *type, *field;
    size_t is, was;
} places[] = {
    AT(ampc_module_info, size, 0),
    AT(ampc_module_info, model, 8),
    AT(ampc_module_info, info, 16),
    AT(ampc_module_info, graph_hash, 24),
    AT(ampc_module_info, batch, 32),
    AT(ampc_module_info, accumulate, 40),
    AT(ampc_module_info, seed, 48),
    AT(ampc_module_info, trains, 56),
    AT(ampc_module_info, evaluates, 60),
    AT(ampc_module_info, predicts, 64),
    AT(ampc_module_info, nvariable, 68),
    AT(ampc_module_info, arena, 72),
    AT(ampc_module_info, parts, 80),
    AT(ampc_module_info, reserved0, 84),

    AT(ampc_program_info, size, 0),
    AT(ampc_program_info, ninput, 8),
    AT(ampc_program_info, noutput, 12),
    AT(ampc_program_info, nstep, 16),
    AT(ampc_program_info, flops, 24),

    AT(ampc_tensor_info, size, 0),
    AT(ampc_tensor_info, name, 8),
    AT(ampc_tensor_info, dtype, 16),
    AT(ampc_tensor_info, rank, 20),
    AT(ampc_tensor_info, shape, 24),
    AT(ampc_tensor_info, bytes, 88),
    AT(ampc_tensor_info, sample_rows, 96),

    AT(ampc_variable_info, size, 0),
    AT(ampc_variable_info, name, 8),
    AT(ampc_variable_info, kind, 16),
    AT(ampc_variable_info, dtype, 20),
    AT(ampc_variable_info, rank, 24),
    AT(ampc_variable_info, shape, 32),
    AT(ampc_variable_info, bytes, 96),

    AT(ampc_comm, size, 0),
    AT(ampc_comm, rank, 8),
    AT(ampc_comm, world, 12),
    AT(ampc_comm, local, 16),
    AT(ampc_comm, any_thread, 20),
    AT(ampc_comm, ctx, 24),
    AT(ampc_comm, allreduce, 32),
    AT(ampc_comm, broadcast, 40),
    AT(ampc_comm, barrier, 48),
    AT(ampc_comm, error, 56),
    AT(ampc_comm, allreduce_on, 64),
    AT(ampc_comm, broadcast_on, 72),
    AT(ampc_comm, group, 80),
    AT(ampc_comm, waiting, 88),
    AT(ampc_comm, gather, 96),
    AT(ampc_comm, scatter, 104),
    AT(ampc_comm, reduce_on, 112),

    AT(ampc_comm_options, size, 0),
    AT(ampc_comm_options, engine, 8),
    AT(ampc_comm_options, deadline, 16),

    AT(ampc_options, size, 0),
    AT(ampc_options, device, 8),
    AT(ampc_options, threads, 16),
    AT(ampc_options, reserved0, 20),
    AT(ampc_options, alloc, 24),
    AT(ampc_options, free, 32),
    AT(ampc_options, alloc_ctx, 40),
    AT(ampc_options, log, 48),
    AT(ampc_options, log_ctx, 56),
    AT(ampc_options, stream, 64),
    AT(ampc_options, comm, 72),
    AT(ampc_options, max_skipped, 80),
    AT(ampc_options, reserved1, 84),

    AT(ampc_input, size, 0),
    AT(ampc_input, name, 8),
    AT(ampc_input, data, 16),
    AT(ampc_input, bytes, 24),
    AT(ampc_input, dtype, 32),
    AT(ampc_input, rank, 36),
    AT(ampc_input, shape, 40),
    AT(ampc_input, place, 48),
    AT(ampc_input, reserved0, 52),

    AT(ampc_output, size, 0),
    AT(ampc_output, name, 8),
    AT(ampc_output, data, 16),
    AT(ampc_output, bytes, 24),
    AT(ampc_output, dtype, 32),
    AT(ampc_output, place, 36),

    AT(ampc_metrics, size, 0),
    AT(ampc_metrics, loss, 8),
    AT(ampc_metrics, grad_norm, 16),
    AT(ampc_metrics, scale, 24),
    AT(ampc_metrics, lr, 32),
    AT(ampc_metrics, updated, 40),
    AT(ampc_metrics, applied, 44),
    AT(ampc_metrics, step, 48),
    AT(ampc_metrics, tried, 56),
    AT(ampc_metrics, skipped, 64),
    AT(ampc_metrics, bad_forward, 72),
    AT(ampc_metrics, bad_data, 80),
    AT(ampc_metrics, skip_streak, 88),

    AT(ampc_device_info, size, 0),
    AT(ampc_device_info, kind, 8),
    AT(ampc_device_info, name, 16),
    AT(ampc_memory_info, size, 0),
    AT(ampc_memory_info, parameters, 8),
    AT(ampc_memory_info, copies, 16),
    AT(ampc_memory_info, state, 24),
    AT(ampc_memory_info, gradients, 32),
    AT(ampc_memory_info, activations, 40),
    AT(ampc_memory_info, workspace, 48),
    AT(ampc_memory_info, total, 56),
    AT(ampc_memory_info, host, 64),

    AT(ampc_bad_data, size, 0),
    AT(ampc_bad_data, input, 8),
    AT(ampc_bad_data, index, 16),
    AT(ampc_bad_data, value, 24),
    AT(ampc_bad_data, least, 32),
    AT(ampc_bad_data, most, 40),
    AT(ampc_bad_data, count, 48),

    AT(ampc_nonfinite, size, 0),
    AT(ampc_nonfinite, origin, 8),
    AT(ampc_nonfinite, dtype, 12),
    AT(ampc_nonfinite, name, 16),
    AT(ampc_nonfinite, index, 24),
    AT(ampc_nonfinite, value, 32),
    AT(ampc_nonfinite, tried, 40),
    AT(ampc_nonfinite, op, 48),
    AT(ampc_nonfinite, source, 56),
    AT(ampc_nonfinite, advice, 64),

    AT(ampc_eval, size, 0),
    AT(ampc_eval, loss_num, 8),
    AT(ampc_eval, loss_den, 16),
    AT(ampc_eval, correct, 24),
    AT(ampc_eval, count, 32),
    AT(ampc_eval, samples, 40),
    AT(ampc_eval, exact, 48),
    AT(ampc_eval, top_k, 52),
    AT(ampc_eval, correct_top, 56),

    AT(ampc_scaler, size, 0),
    AT(ampc_scaler, scale, 8),
    AT(ampc_scaler, good, 16),
    AT(ampc_scaler, hysteresis, 24),
    AT(ampc_scaler, step, 32),
    AT(ampc_scaler, tried, 40),
    AT(ampc_scaler, skipped, 48),
    AT(ampc_scaler, bad_forward, 56),
    AT(ampc_scaler, micro, 64),

    AT(ampc_weights, size, 0),
    AT(ampc_weights, paths, 8),
    AT(ampc_weights, npath, 16),
    AT(ampc_weights, renames, 24),
    AT(ampc_weights, nrename, 32),
    AT(ampc_weights, partial, 40),
    AT(ampc_weights, reserved0, 44),

    AT(ampc_api, size, 0),
    AT(ampc_api, abi, 8),
    AT(ampc_api, reserved0, 12),
    AT(ampc_api, module, 16),
    AT(ampc_api, version, 24),
    AT(ampc_api, describe, 32),
    AT(ampc_api, program, 40),
    AT(ampc_api, input, 48),
    AT(ampc_api, output, 56),
    AT(ampc_api, variable, 64),
    AT(ampc_api, open, 72),
    AT(ampc_api, close, 80),
    AT(ampc_api, error, 88),
    AT(ampc_api, step, 96),
    AT(ampc_api, sync, 104),
    AT(ampc_api, micro_step, 112),
    AT(ampc_api, update, 120),
    AT(ampc_api, vjp, 128),
    AT(ampc_api, evaluate, 136),
    AT(ampc_api, predict, 144),
    AT(ampc_api, read_output, 152),
    AT(ampc_api, get_hyper, 160),
    AT(ampc_api, set_hyper, 168),
    AT(ampc_api, scaler, 176),
    AT(ampc_api, read_variable, 184),
    AT(ampc_api, write_variable, 192),
    AT(ampc_api, save, 200),
    AT(ampc_api, load, 208),
    AT(ampc_api, resume, 216),
    AT(ampc_api, set_cursor, 224),
    AT(ampc_api, get_cursor, 232),
    AT(ampc_api, profile, 240),
    AT(ampc_api, notice, 248),
    AT(ampc_api, bad_data, 256),
    AT(ampc_api, nonfinite, 264),
    AT(ampc_api, load_weights, 272),
    AT(ampc_api, save_weights, 280),
    AT(ampc_api, underflow, 288),
    AT(ampc_api, comm_open, 296),
    AT(ampc_api, comm_close, 304),
    AT(ampc_api, objective_name, 312),
    AT(ampc_api, objective, 320),
    AT(ampc_api, outputs, 328),
    AT(ampc_api, stage, 336),
    AT(ampc_api, device, 344),
    AT(ampc_api, peek, 352),
    AT(ampc_api, memory, 360),
    AT(ampc_api, fit, 368),
};

TEST_CASE(abi, structs_grow_at_their_end) {
    CHECK_EQ_INT(AMPC_ABI_VERSION, 1);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        CHECK_MSG(places[i].is == places[i].was, "%s.%s is at %zu, was at %zu",
                  places[i].type, places[i].field, places[i].is, places[i].was);
}

/* The last row of each struct is its last field, except for padding. */
TEST_CASE(abi, every_field_has_a_row) {
    static const struct {
        const char *type;
        size_t size;
    } sizes[] = {
        {"ampc_module_info", sizeof(ampc_module_info)},
        {"ampc_program_info", sizeof(ampc_program_info)},
        {"ampc_tensor_info", sizeof(ampc_tensor_info)},
        {"ampc_variable_info", sizeof(ampc_variable_info)},
        {"ampc_comm", sizeof(ampc_comm)},
        {"ampc_comm_options", sizeof(ampc_comm_options)},
        {"ampc_options", sizeof(ampc_options)},
        {"ampc_input", sizeof(ampc_input)},
        {"ampc_output", sizeof(ampc_output)},
        {"ampc_metrics", sizeof(ampc_metrics)},
        {"ampc_device_info", sizeof(ampc_device_info)},
        {"ampc_memory_info", sizeof(ampc_memory_info)},
        {"ampc_bad_data", sizeof(ampc_bad_data)},
        {"ampc_nonfinite", sizeof(ampc_nonfinite)},
        {"ampc_eval", sizeof(ampc_eval)},
        {"ampc_scaler", sizeof(ampc_scaler)},
        {"ampc_weights", sizeof(ampc_weights)},
        {"ampc_api", sizeof(ampc_api)},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t last = 0;
        for (size_t k = 0; k < sizeof places / sizeof *places; k++)
            if (!strcmp(places[k].type, sizes[i].type)) last = places[k].is;
        CHECK_MSG(sizes[i].size - last <= 8, "%s has a field without a row",
                  sizes[i].type);
    }
}
