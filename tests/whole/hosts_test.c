/* SPDX-License-Identifier: Apache-2.0 */
/* hosts_test.c: hosts in other languages train a compiled module like C
   does. runtime/python: its structs equal ampc.h's, too, and python_host.py
   has more cases; runtime/cpp; runtime/rust and runtime/go if the compilers
   are installed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/compiled.h"

static const char python[] = "/usr/bin/python3";

static const char model[] = "dim B = 4\n"
                            "model m(x: f32[B,3]) {\n"
                            "  param w: f32[3,2] = normal(0.5)\n"
                            "  return y = x @ w\n}\n";

/* The folder from which Python imports the package. */
static const char *package(void) {
    static char path[512];
    snprintf(path, sizeof path, "%s",
             test_data_path("runtime/python/pyproject.toml"));
    *strrchr(path, '/') = 0;
    return path;
}

/* The output of a script that has imported the package; the caller frees it. */
static char *run_script(const char *body) {
    char path[600], text[4000], *out;
    snprintf(path, sizeof path, "%s/script.py", test_tmpdir());
    int n = snprintf(text, sizeof text,
                     "import sys\nsys.dont_write_bytecode = True\n"
                     "sys.path.insert(0, '%s')\nimport ampc, array, ctypes\n"
                     "%s",
                     package(), body);
    if (access(python, X_OK) != 0) SKIP("there is no %s", python);
    REQUIRE(n > 0 && (size_t)n < sizeof text);
    REQUIRE(test_write_file(path, text, (size_t)n));
    int rc = test_command(&out, "%s -s '%s'", python, path);
    if (rc) FAIL("status %d\n%s", rc, out);
    return out;
}

TEST_CASE(python, structs_are_those_of_the_header) {
    char want[400];
    char *out = run_script(
        "from ampc import _c\n"
        "for t in (_c.ModuleInfo, _c.ProgramInfo, _c.TensorInfo,\n"
        "          _c.VariableInfo, _c.DeviceInfo, _c.MemoryInfo,\n"
        "          _c.CommOptions,\n"
        "          _c.Options, _c.Input, _c.Output, _c.Metrics, _c.BadData,\n"
        "          _c.Nonfinite, _c.Eval, _c.Scaler, _c.Weights, _c.Api):\n"
        "    print(ctypes.sizeof(t), end=' ')\n"
        "print(_c.Api.objective.offset, _c.Metrics.skip_streak.offset)\n");
    snprintf(want, sizeof want,
             "%zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu "
             "%zu %zu %zu\n",
             sizeof(ampc_module_info), sizeof(ampc_program_info),
             sizeof(ampc_tensor_info), sizeof(ampc_variable_info),
             sizeof(ampc_device_info), sizeof(ampc_memory_info),
             sizeof(ampc_comm_options), sizeof(ampc_options),
             sizeof(ampc_input), sizeof(ampc_output), sizeof(ampc_metrics),
             sizeof(ampc_bad_data), sizeof(ampc_nonfinite), sizeof(ampc_eval),
             sizeof(ampc_scaler), sizeof(ampc_weights), sizeof(ampc_api),
             offsetof(ampc_api, objective),
             offsetof(ampc_metrics, skip_streak));
    CHECK_STR(out, want);
    free(out);
}

enum { STEPS = 3 };

/* Every host trains this model and prints three losses and a weight. */
static Compiled train_in_c(char want[200]) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented modules load into instrumented programs only");
#endif
    Compiled c = compile_text(model, "--loss mse --precision fp32 --target "
                                     "cpu:x86-64-v2 --optimizer sgd,lr=0.1 "
                                     "--batch-sizes 2");
    ampc_session *s = open_threads(&c, 1);
    float x[12], t[8], w[6];
    size_t n = 0;
    for (int i = 0; i < 12; i++) x[i] = (float)i / 8;
    for (int i = 0; i < 8; i++) t[i] = (float)(i % 3);
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
    for (int i = 0; i < STEPS; i++)
        n += (size_t)snprintf(want + n, 200 - n, "%.9g\n",
                              step_ok(&c, s, in, 2).loss);
    read_var(&c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    snprintf(want + n, 200 - n, "%.9g\nok\n", w[5]);
    c.api->close(s);
    return c;
}

TEST_CASE(python, trains_as_c_does) {
    char body[3000], want[200];
    Compiled c = train_in_c(want);
    snprintf(
        body, sizeof body,
        "m = ampc.Module('%s')\n"
        "assert m.inputs() == {'x': ('f32', (4, 3)),\n"
        "                      'target': ('f32', (4, 2))}, m.inputs()\n"
        "assert m.outputs() == {'y': ('f32', (4, 2))}, m.outputs()\n"
        "assert m.variables()['w'] == ('parameter', 'f32', (3, 2))\n"
        "x = array.array('f', [i / 8 for i in range(12)])\n"
        "t = array.array('f', [i %% 3 for i in range(8)])\n"
        "with m.session(device='cpu', threads=1) as s:\n"
        "    for i in range(3):\n"
        "        print('%%.9g' %% s.step(target=t, x=x)['loss'])\n"
        "    print('%%.9g' %% memoryview(s['w']).cast('B').cast('f')[5])\n"
        "    y = s.predict(x=x)['y']\n"
        "    e = s.evaluate(x=x, target=t)\n"
        "    assert e['samples'] == 4 and e['accuracy'] is None, e\n"
        "    assert s.evaluate(x=x, target=t, sums=e)['samples'] == 8\n"
        "    path = '%s/py.safetensors'\n"
        "    s.save_weights(path)\n"
        "    w = bytes(s['w'])\n"
        "    s['w'] = array.array('f', [0] * 6)\n"
        "    assert bytes(s['w']) == bytes(24)\n"
        "    assert s.load(path) == '' and bytes(s['w']) == w\n"
        "    assert s.hyper('lr', 0.5) == 0.5\n"
        "    for wrong in (dict(x=x), dict(x=t, target=t), dict(x=x, y=t)):\n"
        "        try:\n"
        "            s.step(**wrong)\n"
        "            print('taken:', wrong)\n"
        "        except ampc.Error as e:\n"
        "            assert e.status == 1\n"
        "    try:\n"
        "        s.load('/nowhere')\n"
        "    except ampc.Error as e:\n"
        "        assert e.status == 3 and 'No such file' in str(e), e\n"
        "        print('ok')\n",
        c.path, test_tmpdir());
    char *out = run_script(body);
    CHECK_STR(out, want);
    free(out);
    compiled_close(&c);
}

TEST_CASE(python, batches_of_other_sizes) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented modules load into instrumented programs only");
#endif
    char body[2000];
    Compiled c = compile_text(
        "dim B\nmodel m(x: f32[B,3]) { return y = Linear(x, units=2) }\n",
        "--loss mse --dim B=4 --batch-sizes 1,2 --target cpu:x86-64-v2 "
        "--precision fp32");
    snprintf(body, sizeof body,
             "m = ampc.Module('%s')\n"
             "assert m.batch == 4 and m.batch_sizes == [1, 2], m.batch_sizes\n"
             "x = array.array('f', [i / 8 for i in range(12)])\n"
             "t = array.array('f', range(8))\n"
             "with m.session(device='cpu', threads=1) as s:\n"
             "    s.step(x=x, target=t)\n"
             "    y = bytes(s.predict(x=x)['y'])\n"
             "    assert bytes(s.predict(x=x[3:6])['y']) == y[8:16]\n"
             "    assert bytes(s.predict(x=x[6:])['y']) == y[16:]\n"
             "    e = s.evaluate(x=x[:6], target=t[:4])\n"
             "    e = s.evaluate(x=x[6:9], target=t[4:6], sums=e)\n"
             "    assert e['samples'] == 3, e\n"
             "    assert bytes(s.predict(x=x[3:])['y']) == y[8:]\n"
             "    assert s.evaluate(x=x[3:], target=t[:6])['samples'] == 3\n"
             "    seven = s.predict(x=x + x[:9])['y']\n"
             "    assert bytes(seven) == y + y[:24], seven\n"
             "    s.step(x=x[3:], target=t[:6])\n"
             "    try:\n"
             "        s.predict(x=x[1:])\n"
             "    except ampc.Error as e:\n"
             "        print('ok')\n",
             c.path);
    char *out = run_script(body);
    CHECK_STR(out, "ok\n");
    free(out);
    compiled_close(&c);
}

/* Shapes are known here: arrays with other numbers of elements are refused. */
TEST_CASE(python, mistakes_of_careless_hosts) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented modules load into instrumented programs only");
#endif
    char body[4000];
    Compiled c = compile_text(model, "--loss mse --precision fp32 --target "
                                     "cpu:x86-64-v2");
    snprintf(
        body, sizeof body,
        "import copy, os, pickle\n"
        "def arr(*shape):\n"
        "    n = 1\n"
        "    for k in shape: n *= k\n"
        "    a = array.array('f', range(n))\n"
        "    return memoryview(a).cast('B').cast('f', shape)\n"
        "def refused(kind, words, call):\n"
        "    try: call()\n"
        "    except kind as e: assert words in str(e), e\n"
        "    else: print('taken:', words)\n"
        "os.chdir('%s')\n"
        "s = ampc.Module('%s').session(device='cpu', threads=1)\n"
        "t = arr(4, 2)\n"
        "for x in (arr(4, 3), arr(12), arr(4, 1, 3), arr(2, 2, 3)):\n"
        "    s.step(x=x, target=t)\n"
        "refused(ampc.Error, 'its axes in the order (1, 0) would fit',\n"
        "        lambda: s.step(x=arr(3, 4), target=t))\n"
        "refused(ampc.Error, 'shape f32[6,2] given, f32[4,3] needed',\n"
        "        lambda: s.step(x=arr(6, 2), target=t))\n"
        "refused(ampc.Error, 'order (1, 0) would fit',\n"
        "        lambda: s.evaluate(x=arr(3, 4), target=t))\n"
        "refused(ampc.Error, 'order (1, 0) would fit',\n"
        "        lambda: s.predict(x=arr(3, 4)))\n"
        "refused(ampc.Error, 'order (1, 0) would fit',\n"
        "        lambda: s.__setitem__('w', arr(2, 3)))\n"
        "s['w'] = arr(3, 2)\n"
        "refused(ampc.Error, 'numpy.asarray(x, ',\n"
        "        lambda: s.step(x=[[1.0] * 3] * 4, target=t))\n"
        "refused(ampc.Error, 'f64',\n"
        "        lambda: s.step(x=memoryview(array.array('d', [0.0] * 12))\n"
        "                       .cast('B').cast('d', (4, 3)), target=t))\n"
        "for make in (copy.copy, copy.deepcopy, pickle.dumps):\n"
        "    refused(TypeError, 'neither copied', lambda: make(s))\n"
        "for call in (s.save, s.resume, s.save_weights, s.load):\n"
        "    refused(ValueError, 'null byte', lambda: call('a\\0b'))\n"
        "refused(ValueError, 'null byte', lambda: s['w\\0x'])\n"
        "refused(ValueError, 'null byte', lambda: s.hyper('lr\\0x'))\n"
        "refused(ValueError, 'null byte',\n"
        "        lambda: s.module.session(device='cpu\\0x'))\n"
        "refused(ValueError, 'threads is 4294967297',\n"
        "        lambda: s.module.session(threads=2**32 + 1))\n"
        "refused(ValueError, 'valid is 18446744073709551617',\n"
        "        lambda: s.evaluate(valid=2**64 + 1, x=arr(12), target=t))\n"
        "assert not os.path.exists('a')\n"
        "print('ok')\n",
        test_tmpdir(), c.path);
    char *out = run_script(body);
    CHECK_STR(out, "ok\n");
    free(out);
    compiled_close(&c);
}

/* Cases of python_host.py, which explains them. */
static void python_case(const char *name, int nmodule, Compiled *modules) {
    char command[4000], *out;
    const char *ampc = test_ampc();
    if (access(python, X_OK) != 0) SKIP("there is no %s", python);
    int n = snprintf(command, sizeof command, "%s -s '%s' '%s' '%s' '%s' %s",
                     python, test_data_path("tests/whole/python_host.py"),
                     package(), ampc, test_tmpdir(), name);
    for (int i = 0; i < nmodule; i++)
        n += snprintf(command + n, sizeof command - (size_t)n, " '%s'",
                      modules[i].path);
    if (!nmodule) snprintf(command + n, sizeof command - (size_t)n, " none");
    int rc = test_command(&out, "%s", command);
    if (rc) FAIL("status %d\n%s", rc, out);
    CHECK_STR(out, "ok\n");
    free(out);
    for (int i = 0; i < nmodule; i++) compiled_close(&modules[i]);
}

#define FAST "--precision fp32 --target cpu:x86-64-v2 "

static Compiled accumulating(void) {
    return compile_text(model, FAST "--loss mse --accumulate 2 --optimizer "
                                    "sgd,lr=0.1");
}

static Compiled classes(void) {
    return compile_text(model, FAST "--loss cross_entropy");
}

TEST_CASE(python, takes_arrays_of_other_libraries) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented modules load into instrumented programs only");
#endif
    Compiled c[] = {compile_text(model, FAST "--loss mse --optimizer adam,"
                                             "lr=0.05")};
    python_case("arrays", 1, c);
}

TEST_CASE(python, fits) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented modules load into instrumented programs only");
#endif
    Compiled c[] = {compile_text(model, FAST "--loss mse --optimizer adam,"
                                             "lr=0.05"),
                    accumulating(), classes()};
    python_case("fit", 3, c);
}

TEST_CASE(python, has_every_call) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented modules load into instrumented programs only");
#endif
    Compiled c[] = {
        compile_text(model, FAST "--loss mse --optimizer sgd,lr=0.1"),
        compile_text(model, FAST "--loss host --optimizer sgd,lr=0.1"),
        accumulating(), classes()};
    python_case("calls", 4, c);
}

TEST_CASE(python, compiles) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented modules load into instrumented programs only");
#endif
    python_case("compiling", 0, NULL);
}

TEST_CASE(python, takes_arrays_of_several_sizes) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented modules load into instrumented programs only");
#endif
    static const char sentences[] =
        "dim B = 4\ndim T\n"
        "model net(x: i64[B,T], place: f32[T]) {\n"
        "  h = Embedding(x, size=9, width=4) * reshape(place, shape=[1,T,1])\n"
        "  return y = Linear(h, units=3)\n"
        "}\n";
#define SENTENCES                                                              \
    FAST "--loss cross_entropy,axis=2 --optimizer sgd,lr=0.1 "                 \
         "--dim "
    Compiled c[] = {compile_text(sentences, SENTENCES
                                 "'T=3|6' --pad x=0,place=0,target=-100"),
                    compile_text(sentences, SENTENCES "T=6")};
    python_case("sizes", 2, c);
}

/* pip calls the same function; the sources stay unchanged. */
TEST_CASE(python, makes_a_wheel) {
    char *out, body[1500];
    snprintf(body, sizeof body,
             "import os, subprocess, zipfile\n"
             "here = sys.path[0]\n"
             "import wheel\n"
             "before = sorted(os.listdir(here))\n"
             "for c, tag in ((sys.executable, 'linux_x86_64'), ('none', "
             "'any')):\n"
             "    name = wheel.build_wheel('%s', {'compiler': c})\n"
             "    assert name.endswith(tag + '.whl'), name\n"
             "    z = zipfile.ZipFile('%s/' + name)\n"
             "    names = z.namelist()\n"
             "    assert 'ampc/_session.py' in names and 'ampc/py.typed' in "
             "names\n"
             "    assert ('ampc/bin/ampc' in names) == (c != 'none')\n"
             "    assert all(n.split(',')[0] in names for n in\n"
             "               z.read(names[-1]).decode().split())\n"
             "assert sorted(os.listdir(here)) == before\n"
             "print('ok')\n",
             test_tmpdir(), test_tmpdir());
    out = run_script(body);
    CHECK_STR(out, "ok\n");
    free(out);
}

/* ---- hosts that are built ------------------------------------------------ */

/* Checks the output of a program built there, with C's module and its own
   weights. */
static void check_host(const char *program, const char *build) {
    char want[200], *out;
    if (test_command(&out, "%s", build) != 0) FAIL("%s", out);
    free(out);
    Compiled c = train_in_c(want);
    int rc = test_command(&out, "'%s' '%s' '%s.safetensors'", program, c.path,
                          program);
    CHECK_EQ_INT(rc, 0);
    CHECK_STR(out, want);
    free(out);
    compiled_close(&c);
}

/* ---- C++ ----------------------------------------------------------------- */

static const char cpp[] =
    "#include <cstdio>\n"
    "#include \"ampc.hpp\"\n"
    "int main(int argc, char **argv) {\n"
    "    ampc::module m(argv[1]);\n"
    "    if (m.inputs_of(\"train\").size() != 2 || m.info().batch != 4 ||\n"
    "        argc != 3)\n"
    "        return 2;\n"
    "    ampc::session s(m, \"cpu\", 1);\n"
    "    std::vector<float> x(12), t(8);\n"
    "    for (int i = 0; i < 12; i++) x[i] = i / 8.0f;\n"
    "    for (int i = 0; i < 8; i++) t[i] = i % 3;\n"
    "    for (int i = 0; i < 3; i++)\n"
    "        std::printf(\"%.9g\\n\", s.step({ampc::in(\"x\", x),\n"
    "            ampc::in(\"target\", t)}).loss);\n"
    "    std::vector<float> w = s.read<float>(\"w\");\n"
    "    std::printf(\"%.9g\\n\", w[5]);\n"
    "    ampc_eval e = ampc::module::sized<ampc_eval>();\n"
    "    s.evaluate({ampc::in(\"x\", x), ampc::in(\"target\", t)}, 3, e);\n"
    "    if (e.samples != 3) return 3;\n"
    "    std::vector<float> y = s.predict<float>({ampc::in(\"x\", x)}, "
    "\"y\");\n"
    "    if (y.size() != 8 || y[1] != x[2] * w[5] + x[1] * w[3]) return 4;\n"
    "    std::vector<float> half(x.begin(), x.begin() + 6);\n"
    "    if (s.predict<float>({ampc::in(\"x\", half)}, \"y\") !=\n"
    "        std::vector<float>(y.begin(), y.begin() + 4))\n"
    "        return 10;\n"
    "    s.save_weights(argv[2]);\n"
    "    s.write(\"w\", std::vector<float>(6));\n"
    "    if (s.read<float>(\"w\")[5] != 0) return 5;\n"
    "    s.load(argv[2]);\n"
    "    s.hyper(\"lr\", 0.5);\n"
    "    if (s.read<float>(\"w\") != w || s.hyper(\"lr\") != 0.5) return 6;\n"
    "    try {\n"
    "        s.step({ampc::in(\"x\", t), ampc::in(\"target\", t)});\n"
    "        return 7;\n"
    "    } catch (const ampc::error &e) {\n"
    "        if (e.status != AMPC_ERR_ARGUMENT) return 8;\n"
    "    }\n"
    "    try {\n"
    "        s.save(std::string(\"a\\0b\", 3));\n"
    "        return 11;\n"
    "    } catch (const ampc::error &e) {\n"
    "        if (e.status != AMPC_ERR_ARGUMENT) return 12;\n"
    "    }\n"
    "    try {\n"
    "        ampc::module none(\"/nowhere.so\");\n"
    "        return 9;\n"
    "    } catch (const ampc::error &e) {\n"
    "        std::puts(\"ok\");\n"
    "    }\n"
    "    return 0;\n"
    "}\n";

TEST_CASE(cpp, trains_as_c_does) {
    char build[3000];
    const char *header = test_data_path("runtime/cpp/ampc.hpp");
    int dir = (int)(strlen(header) - strlen("/ampc.hpp"));
    if (access("/usr/bin/g++", X_OK) != 0) SKIP("there is no /usr/bin/g++");
    REQUIRE(test_write_file(test_tmp("host.cc"), cpp, sizeof cpp - 1));
    snprintf(build, sizeof build,
             "PATH=/usr/bin:/bin g++ -std=c++11 -Wall -Wextra -Werror "
             "-Wpedantic -I'%.*s/..' -I'%.*s' -o '%s' '%s' -ldl",
             dir, header, dir, header, test_tmp("cpp_host"),
             test_tmp("host.cc"));
    check_host(test_tmp("cpp_host"), build);
}

/* ---- Rust and Go --------------------------------------------------------- */

static const char rust[] =
    "mod ampc;\n"
    "use ampc::input;\n"
    "fn run(path: &str, weights: &str) -> ampc::Result<()> {\n"
    "    let m = ampc::Module::load(path)?;\n"
    "    assert!(m.info().batch == 4 && m.info().trains == 1);\n"
    "    let mut s = ampc::Session::open(&m, Some(\"cpu\"), 1)?;\n"
    "    let x: Vec<f32> = (0..12).map(|i| i as f32 / 8.0).collect();\n"
    "    let t: Vec<f32> = (0..8).map(|i| (i % 3) as f32).collect();\n"
    "    for _ in 0..3 { println!(\"{:.9}\", s.step(&[input(\"x\", &x), "
    "input(\"target\", &t)])?.loss); }\n"
    "    let w: Vec<f32> = s.read(\"w\", 6)?;\n"
    "    println!(\"{:.9}\", w[5]);\n"
    "    let mut e = ampc::Eval::default();\n"
    "    s.evaluate(&[input(\"x\", &x), input(\"target\", &t)], 3, &mut e)?;\n"
    "    assert_eq!(e.samples, 3);\n"
    "    let y: Vec<f32> = s.predict(&[input(\"x\", &x)], 4, \"y\", 8)?;\n"
    "    assert_eq!(y.len(), 8);\n"
    "    s.save_weights(weights)?;\n"
    "    s.write(\"w\", &[0f32; 6])?;\n"
    "    assert_eq!(s.read::<f32>(\"w\", 6)?[5], 0.0);\n"
    "    s.load(weights)?;\n"
    "    s.set_hyper(\"lr\", 0.5)?;\n"
    "    assert!(s.read::<f32>(\"w\", 6)? == w && s.hyper(\"lr\")? == 0.5);\n"
    "    let wrong = s.step(&[input(\"x\", &t), input(\"target\", "
    "&t)]).unwrap_err();\n"
    "    assert_eq!(wrong.status, 1);\n"
    "    s.objective(\"\")?;\n"
    "    assert_eq!(s.objective(\"nobody\").unwrap_err().status, 1);\n"
    "    assert!(ampc::Module::load(\"/nowhere.so\").is_err());\n"
    "    println!(\"ok\");\n"
    "    Ok(())\n"
    "}\n"
    "fn main() {\n"
    "    let a: Vec<String> = std::env::args().collect();\n"
    "    if let Err(e) = run(&a[1], &a[2]) { println!(\"{e}\"); "
    "std::process::exit(1); }\n"
    "}\n";

static const char go[] =
    "package main\n"
    "\n"
    "import (\n"
    "    \"fmt\"\n"
    "    \"host/ampc\"\n"
    "    \"os\"\n"
    ")\n"
    "\n"
    "func must(err error) {\n"
    "    if err != nil {\n"
    "        fmt.Println(err)\n"
    "        os.Exit(1)\n"
    "    }\n"
    "}\n"
    "\n"
    "func main() {\n"
    "    m, err := ampc.Load(os.Args[1])\n"
    "    must(err)\n"
    "    s, err := m.Open(\"cpu\", 1)\n"
    "    must(err)\n"
    "    x, t, w := make([]float32, 12), make([]float32, 8), make([]float32, "
    "6)\n"
    "    for i := range x {\n"
    "        x[i] = float32(i) / 8\n"
    "    }\n"
    "    for i := range t {\n"
    "        t[i] = float32(i % 3)\n"
    "    }\n"
    "    for i := 0; i < 3; i++ {\n"
    "        r, err := s.Step(ampc.In(\"x\", x), ampc.In(\"target\", t))\n"
    "        must(err)\n"
    "        fmt.Printf(\"%.9g\\n\", r.Loss)\n"
    "    }\n"
    "    must(ampc.Read(s, \"w\", w))\n"
    "    fmt.Printf(\"%.9g\\n\", w[5])\n"
    "    var e ampc.Eval\n"
    "    must(s.Evaluate(&e, 3, ampc.In(\"x\", x), ampc.In(\"target\", t)))\n"
    "    y, z := make([]float32, 8), make([]float32, 6)\n"
    "    must(ampc.Predict(s, \"y\", y, 4, ampc.In(\"x\", x)))\n"
    "    must(s.SaveWeights(os.Args[2]))\n"
    "    must(ampc.Write(s, \"w\", z))\n"
    "    must(s.Load(os.Args[2]))\n"
    "    must(ampc.Read(s, \"w\", z))\n"
    "    must(s.SetHyper(\"lr\", 0.5))\n"
    "    lr, err := s.Hyper(\"lr\")\n"
    "    must(err)\n"
    "    must(s.Objective(\"\"))\n"
    "    if s.Objective(\"nobody\") == nil {\n"
    "        os.Exit(3)\n"
    "    }\n"
    "    _, err = s.Step(ampc.In(\"x\", t), ampc.In(\"target\", t))\n"
    "    wrong, told := err.(*ampc.Error)\n"
    "    _, none := ampc.Load(\"/nowhere.so\")\n"
    "    if m.Batch() != 4 || e.Samples != 3 || y[1] != x[2]*w[5]+x[1]*w[3] || "
    "z[5] != w[5] ||\n"
    "        lr != 0.5 || !told || wrong.Status != 1 || none == nil {\n"
    "        fmt.Println(m.Batch(), e, y, z, lr, err, none)\n"
    "        os.Exit(2)\n"
    "    }\n"
    "    s.Close()\n"
    "    fmt.Println(\"ok\")\n"
    "}\n";

static void require_tool(const char *name) {
    if (test_command(NULL, "command -v %s", name) != 0)
        SKIP("there is no %s", name);
}

TEST_CASE(rust, trains_as_c_does) {
    char build[2000];
    require_tool("rustc");
    REQUIRE(test_write_file(test_tmp("main.rs"), rust, sizeof rust - 1));
    snprintf(build, sizeof build,
             "cd '%s' && cp '%s' ampc.rs && rustc --edition 2021 -D warnings "
             "-o rust_host main.rs",
             test_tmpdir(), test_data_path("runtime/rust/ampc.rs"));
    check_host(test_tmp("rust_host"), build);
}

TEST_CASE(go, trains_as_c_does) {
    char build[3000];
    require_tool("go");
    REQUIRE(test_command(NULL, "mkdir -p '%s/go/ampc'", test_tmpdir()) == 0);
    REQUIRE(test_write_file(test_tmp("go/main.go"), go, sizeof go - 1));
    snprintf(build, sizeof build,
             "cd '%s/go' && cp '%s' ampc/ && cp '%s' . && printf "
             "'module host\n\ngo 1.18\n' >go.mod && GOCACHE=\"$PWD/cache\" "
             "GOPATH=\"$PWD/path\" GOFLAGS=-mod=mod GO111MODULE=on "
             "CGO_ENABLED=1 go build -o host .",
             test_tmpdir(), test_data_path("runtime/go/ampc.go"),
             test_data_path("runtime/ampc.h"));
    check_host(test_tmp("go/host"), build);
}
