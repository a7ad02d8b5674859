// SPDX-License-Identifier: Apache-2.0
/* ampc.hpp: ampc.h for C++11: modules and sessions that free themselves, typed
   arrays, exceptions.  Header only; older C libraries want -ldl.

     ampc::module m("train.so");
     ampc::session s(m);
     std::vector<float> x(64 * 784);
     std::vector<std::int64_t> t(64);
     double loss = s.step({ampc::in("input", x), ampc::in("target", t)}).loss;
     std::vector<float> y = s.predict<float>({ampc::in("input", x)}, "logits");
     s.save("w.safetensors");

   The rules are those of ampc.h: one thread at a time per session; a module
   outlives its sessions.  A call that fails throws ampc::error.             */
#ifndef AMPC_HPP
#define AMPC_HPP

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "ampc.h"

namespace ampc {

class error : public std::runtime_error {
  public:
    error(ampc_status s, const std::string &text)
        : std::runtime_error(text), status(s) {}
    ampc_status status;
};

/* ---- arrays -------------------------------------------------------------- */

/* The ampc_dtype of an element type; 16-bit floating numbers have none. */
template <class T> struct dtype;
template <> struct dtype<bool> {
    static const ampc_dtype value = AMPC_DTYPE_BOOL;
};
template <> struct dtype<std::uint8_t> {
    static const ampc_dtype value = AMPC_DTYPE_U8;
};
template <> struct dtype<std::int8_t> {
    static const ampc_dtype value = AMPC_DTYPE_I8;
};
template <> struct dtype<std::uint16_t> {
    static const ampc_dtype value = AMPC_DTYPE_U16;
};
template <> struct dtype<std::int16_t> {
    static const ampc_dtype value = AMPC_DTYPE_I16;
};
template <> struct dtype<std::uint32_t> {
    static const ampc_dtype value = AMPC_DTYPE_U32;
};
template <> struct dtype<std::int32_t> {
    static const ampc_dtype value = AMPC_DTYPE_I32;
};
template <> struct dtype<std::uint64_t> {
    static const ampc_dtype value = AMPC_DTYPE_U64;
};
template <> struct dtype<std::int64_t> {
    static const ampc_dtype value = AMPC_DTYPE_I64;
};
template <> struct dtype<float> {
    static const ampc_dtype value = AMPC_DTYPE_F32;
};
template <> struct dtype<double> {
    static const ampc_dtype value = AMPC_DTYPE_F64;
};

/* Of n elements, or of a vector; neither is copied. */
template <class T> ampc_input in(const char *name, const T *data, std::size_t n) {
    return ampc_in(name, data, n * sizeof(T), dtype<T>::value);
}
template <class T> ampc_input in(const char *name, const std::vector<T> &data) {
    return in(name, data.data(), data.size());
}
typedef std::initializer_list<ampc_input> inputs;

/* ---- modules ------------------------------------------------------------- */

class module {
  public:
    explicit module(const std::string &path,
                    const std::string &symbol = "ampc_module") {
        char why[512] = "";
        api_ = ampc_load_symbol(path.c_str(), symbol.c_str(), &handle_, why,
                                sizeof why);
        if (!api_) throw error(AMPC_ERR_FILE, why);
    }
    ~module() { dlclose(handle_); }
    module(const module &) = delete;
    module &operator=(const module &) = delete;

    const ampc_api &api() const { return *api_; }

    ampc_module_info info() const {
        ampc_module_info i = sized<ampc_module_info>();
        api_->describe(api_->module, &i);
        return i;
    }
    /* Of "train", "micro", "eval" or "predict", or for another batch of
       --batch-sizes "predict@N"; none if it lacks that. */
    std::vector<ampc_tensor_info> inputs_of(const char *program) const {
        return tensors(api_->input, program);
    }
    std::vector<ampc_tensor_info> outputs_of(const char *program) const {
        return tensors(api_->output, program);
    }
    std::vector<ampc_variable_info> variables() const {
        std::vector<ampc_variable_info> all(info().nvariable,
                                            sized<ampc_variable_info>());
        for (std::size_t i = 0; i < all.size(); i++)
            api_->variable(api_->module, static_cast<std::uint32_t>(i),
                           &all[i]);
        return all;
    }

    /* A public struct of ampc.h, zeroed, its size set. */
    template <class S> static S sized() {
        S s = S();
        s.size = sizeof s;
        return s;
    }

  private:
    template <class F>
    std::vector<ampc_tensor_info> tensors(F call, const char *program) const {
        std::vector<ampc_tensor_info> all;
        ampc_tensor_info t = sized<ampc_tensor_info>();
        while (call(api_->module, program,
                    static_cast<std::uint32_t>(all.size()), &t) == AMPC_OK)
            all.push_back(t);
        return all;
    }

    const ampc_api *api_ = nullptr;
    void *handle_ = nullptr;
};

/* ---- sessions ------------------------------------------------------------ */

class session {
  public:
    explicit session(const module &m, const char *device = "auto",
                     int threads = 0)
        : session(m, options(device, threads)) {}
    session(const module &m, const ampc_options &o) : module_(&m) {
        char why[512] = "";
        ampc_status status =
            m.api().open(m.api().module, &o, &s_, why, sizeof why);
        if (status != AMPC_OK) throw error(status, why);
    }
    ~session() { module_->api().close(s_); }
    session(const session &) = delete;
    session &operator=(const session &) = delete;

    /* For what has no wrapper: api() with this session. */
    ampc_session *get() const { return s_; }
    const ampc_api &api() const { return module_->api(); }
    void check(ampc_status status) const {
        if (status != AMPC_OK) throw error(status, api().error(s_));
    }

    /* What the next steps are for, of a module with several objectives. */
    void objective(const char *name) { check(api().objective(s_, name)); }

    ampc_metrics step(inputs in) {
        ampc_metrics m = module::sized<ampc_metrics>();
        check(api().step(s_, in.begin(), in.size(), &m));
        return m;
    }
    /* Adds the first `valid` samples to `sums`. */
    void evaluate(inputs in, std::int64_t valid, ampc_eval &sums) {
        sums.size = sizeof sums;
        check(api().evaluate(s_, in.begin(), in.size(), valid, &sums));
    }
    /* One output, all rows. */
    template <class T>
    std::vector<T> predict(inputs in, const char *output) {
        std::int64_t own = module_->info().batch, batch = batch_of(in, own);
        std::string program = "predict";
        if (batch != own) program += "@" + std::to_string(batch);
        check(api().predict(s_, in.begin(), in.size(), batch, nullptr, 0));
        for (const ampc_tensor_info &t : module_->outputs_of(program.c_str()))
            if (std::string(t.name) == output) {
                std::vector<T> all(t.bytes / sizeof(T));
                ampc_output o = ampc_out(output, all.data(),
                                         all.size() * sizeof(T),
                                         dtype<T>::value);
                check(api().read_output(s_, output, &o));
                return all;
            }
        throw error(AMPC_ERR_ARGUMENT, std::string("no output ") + output);
    }

    template <class T> std::vector<T> read(const char *variable) const {
        for (const ampc_variable_info &v : module_->variables())
            if (std::string(v.name) == variable) {
                std::vector<T> all(v.bytes / sizeof(T));
                ampc_output o = ampc_out(variable, all.data(),
                                         all.size() * sizeof(T),
                                         dtype<T>::value);
                check(api().read_variable(s_, variable, &o));
                return all;
            }
        throw error(AMPC_ERR_ARGUMENT, std::string("no variable ") + variable);
    }
    template <class T>
    void write(const char *variable, const std::vector<T> &data) {
        ampc_input i = in(nullptr, data);
        check(api().write_variable(s_, variable, &i));
    }
    double hyper(const char *name) const {
        double x = 0;
        check(api().get_hyper(s_, name, &x));
        return x;
    }
    void hyper(const char *name, double x) {
        check(api().set_hyper(s_, name, x));
    }

    void save(const std::string &path) { check(api().save(s_, whole(path))); }
    void load(const std::string &path) { check(api().load(s_, whole(path))); }
    void resume(const std::string &path) {
        check(api().resume(s_, whole(path)));
    }
    void save_weights(const std::string &path) {
        check(api().save_weights(s_, whole(path)));
    }
    /* What the last call wants known. */
    std::string notice() const { return api().notice(s_); }

  private:
    /* The batch of --batch-sizes that the first input is as large as. */
    std::int64_t batch_of(inputs in, std::int64_t own) const {
        for (const ampc_tensor_info &t : module_->inputs_of("predict")) {
            std::size_t rows = static_cast<std::size_t>(own);
            if (!in.size() || !rows || t.bytes < rows) continue;
            const char *name = in.begin()->name;
            if (!name || std::string(name) == t.name)
                return static_cast<std::int64_t>(in.begin()->bytes /
                                                 (t.bytes / rows));
        }
        return own;
    }

    /* C would end at a byte of 0. */
    static const char *whole(const std::string &path) {
        if (path.find('\0') != std::string::npos)
            throw error(AMPC_ERR_ARGUMENT, "path: it has a NUL inside");
        return path.c_str();
    }

    static ampc_options options(const char *device, int threads) {
        ampc_options o = module::sized<ampc_options>();
        o.device = device;
        o.threads = threads;
        return o;
    }

    const module *module_;
    ampc_session *s_ = nullptr;
};

} // namespace ampc

#endif
