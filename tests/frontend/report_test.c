/* SPDX-License-Identifier: Apache-2.0 */
/* report_test.c: --report as text, as JSON that adds up, and as a page that a
   browser draws from it.                                                    */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

/* Names come from the model: a page must show them as plain text. */
static const char model[] =
    "graph forward(%x: f32[4,8]) {\n"
    "  param %\"w</script><b>&\": f32[8,3], %v: f32[3,3]\n"
    "  %h = matmul %x, %\"w</script><b>&\"\n"
    "  %\"one/two/act\" = tanh %h\n"
    "  %y = matmul %\"one/two/act\", %v\n"
    "  return %y\n}\n";

static char *report(const char *file) {
    char *out;
    REQUIRE(test_write_file(test_tmp("m.amp"), model, strlen(model)));
    int rc = test_command(&out,
                          "cd '%s' && AMPC_LIBNVRTC=none '%s' m.amp -o m.so "
                          "--loss mse --precision bf16 --target "
                          "cpu:x86-64-v2 --report %s",
                          test_tmpdir(), test_ampc(), file);
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
    char *text = test_read_file(test_tmp(file), NULL);
    REQUIRE(text != NULL);
    return text;
}

/* An f8 number times another one has more bits. */
TEST_CASE(report, products_of_f8_numbers) {
    static const char *const ways[] = {"  %h = mul %d, %x : f32[4,8]\n",
                                       "  %h = reshape %d {shape=[4,8]}\n"};
    for (int i = 0; i < 2; i++) {
        char text[400], *out;
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[4,8], %%z: f32[4,8]) {\n"
                 "  param %%v: f32[8,3]\n"
                 "  %%c = cast %%z {user=1} : f8e4m3[4,8]\n"
                 "  %%d = cast %%c : f32[4,8]\n%s"
                 "  %%y = matmul %%h, %%v\n  return %%y\n}\n",
                 ways[i]);
        REQUIRE(test_write_file(test_tmp("f8.amp"), text, strlen(text)));
        int rc = test_command(&out,
                              "cd '%s' && AMPC_LIBNVRTC=none '%s' f8.amp -o "
                              "f8.so --loss mse --precision bf16 --target "
                              "cpu:x86-64-v2",
                              test_tmpdir(), test_ampc());
        CHECK_MSG(rc == 0, "%s", out);
        CHECK_MSG(!strstr(out, "products of f8 numbers") == !i, "%s", out);
        free(out);
    }
}

/* x: 4 x 8 elements; forward and backward make a copy each: 64 bytes as bf16,
   written and read once, where a product that reads f32 reads 128.  w's copy:
   48 bytes written and read once, or 96 read.  v's is read twice: 18 x 3 bytes,
   or 36 x 2. */
TEST_CASE(report, text) {
    char *text = report("r.txt");
    CHECK_HAS(text, "cast x f32[4,8] -> bf16 for matmul: products read 16 "
                    "bits; forward, a kernel of its own, 128 bytes "
                    "(without it +0)\n");
    CHECK_HAS(text, ".bf16.2, 48 bytes (without it +0)\n");
    CHECK_HAS(text, ".bf16.2, 18 bytes (without it +18)\n");
    CHECK_HAS(text, "  kept in bf16 ");
    CHECK_HAS(text, "arena of train    on cpu ");
    free(text);
}

/* "N casts, M bytes" after the casts of each program. */
TEST_CASE(report, totals_of_the_text) {
    char *text = report("r.txt");
    long long sum = 0, bytes, n = 0, total;
    int programs = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        const char *at = strstr(line, " bytes (without it ");
        if (!strncmp(line, "program ", 8)) sum = n = 0;
        if (!strncmp(line, "  cast ", 7) && CHECK(at != NULL)) {
            while (at[-1] >= '0' && at[-1] <= '9') at--;
            sum += atoll(at);
            n++;
        }
        if (sscanf(line, "  %lld casts, %lld bytes;", &total, &bytes) != 2)
            continue;
        CHECK_EQ_INT(total, n);
        CHECK_EQ_INT(bytes, sum);
        programs += n > 2;
    }
    CHECK(programs > 0);
    free(text);
}

/* Python adds up the numbers independently. */
static const char adds_up[] =
    "import json, re\n"
    "r = json.load(open('r.json'))\n"
    "size = {'f32': 4, 'bf16': 2, 'f64': 8}\n"
    "def elements(t):\n"
    "    n = 1\n"
    "    for d in re.findall(r'\\d+', t.split('[')[1]): n *= int(d)\n"
    "    return n\n"
    "assert [p['program'] for p in r['casts']] == [p['program'] for p in "
    "r['kernels']] == [p['program'] for p in r['memory']['programs']]\n"
    "for c, k, m in zip(r['casts'], r['kernels'], r['memory']['programs']):\n"
    "    reads = [n for q in k['kernels'] for n in q['reads']]\n"
    "    writes = [n for q in k['kernels'] for n in q['writes']]\n"
    "    assert len(set(writes)) == len(writes)\n"
    "    kept = {}\n"
    "    for v in c['values']:\n"
    "        assert writes.count(v['value']) == 1, v\n"
    "        d = v['type'].split('[')[0]\n"
    "        n = elements(v['type']) * size[d]\n"
    "        assert v['bytes'] == n * (1 + reads.count(v['value'])), v\n"
    "        if v['saved']: kept[d] = kept.get(d, 0) + n\n"
    "    for d in size:\n"
    "        assert m['kept'].get(d, {}).get('bytes', 0) == kept.get(d, 0), m\n"
    "    assert sum(m['fullest'].values()) <= m['arena'], m\n"
    "    assert not m['arena'] or any(m['fullest'].values()), m\n"
    "    live = [0] * len(k['kernels'])\n"
    "    for v in c['values']:\n"
    "        uses = [i for i, q in enumerate(k['kernels'])\n"
    "                if v['value'] in q['reads'] + q['writes']]\n"
    "        for i in range(uses[0], uses[-1] + 1):\n"
    "            live[i] += elements(v['type']) * "
    "size[v['type'].split('[')[0]]\n"
    "    if k['program'] in ('predict', 'eval', 'micro'):\n"
    "        assert sum(m['fullest'].values()) >= max(live) > 0, (m, live)\n"
    "for k in r['kernels']:\n"
    "    names = [q['name'] for q in k['kernels']]\n"
    "    for p in 'w</script><b>&', 'v':\n"
    "        trains = k['program'] in ('train', 'update')\n"
    "        assert names.count('adamw ' + p) == trains, names\n"
    "        trains = k['program'] == 'train'\n"
    "        for of in '', 'norm of the ':\n"
    "            assert names.count(of + 'gradient of ' + p) == trains, names\n"
    "print('adds up')\n";

TEST_CASE(report, json_adds_up) {
    char *text = report("r.json"), *out;
    REQUIRE(test_write_file(test_tmp("sum.py"), adds_up, strlen(adds_up)));
    int rc = test_command(&out, "cd '%s' && python3 sum.py", test_tmpdir());
    CHECK_MSG(rc == 0, "%s", out);
    CHECK_HAS(out, "adds up");
    free(out);
    free(text);
}

/* The first product's kernel computes gelu's slope, not gelu's operand,
   which nothing else reads; the gradient from the loss's kernel is not
   counted. */
TEST_CASE(report, what_forward_makes_for_backward_is_kept) {
    static const char text[] = "graph forward(%x: f32[4,8]) {\n"
                               "  param %w: f32[8,64], %v: f32[64,3]\n"
                               "  %h = matmul %x, %w\n  %g = gelu %h\n"
                               "  %y = matmul %g, %v\n  return %y\n}\n";
    char *out;
    REQUIRE(test_write_file(test_tmp("g.amp"), text, strlen(text)));
    test_command(&out,
                 "cd '%s' && AMPC_LIBNVRTC=none '%s' inspect g.amp --loss mse "
                 "--precision fp32 --target cpu:x86-64-v2 --casts",
                 test_tmpdir(), test_ampc());
    CHECK_HAS(out, "f32[4,64] gelu_slope h.gelu_slope: backward, 2048 bytes, "
                   "kept for backward");
    CHECK_HAS(out, "f32[4,3] add y.grad: backward, 144 bytes\n");
    free(out);
}

/* The first product and the last one multiply 16 bits. */
TEST_CASE(report, codes_of_blocks_have_their_reason) {
    static const char text[] = "graph forward(%x: f32[256,512]) {\n"
                               "  param %a: f32[512,512], %b: f32[512,512]\n"
                               "  param %c: f32[512,512]\n"
                               "  %h = matmul %x, %a\n  %g = gelu %h\n"
                               "  %i = matmul %g, %b\n  %j = gelu %i\n"
                               "  %y = matmul %j, %c\n  return %y\n}\n";
    char *out;
    REQUIRE(test_write_file(test_tmp("b.amp"), text, strlen(text)));
    test_command(&out,
                 "cd '%s' && AMPC_LIBNVRTC=none '%s' inspect b.amp --loss mse "
                 "--precision f8 --f8-scales block --target cuda:sm_100 "
                 "--casts",
                 test_tmpdir(), test_ampc());
    CHECK_HAS(out, "f8e4m3[512,256] block_codes g.block_codes.2: forward, "
                   "262144 bytes, kept for backward; codes of 8 bits, with "
                   "scales of blocks of 32\n");
    CHECK_HAS(out, "e8m0[8192] block_scales b.block_scales: forward, 16384 "
                   "bytes; scales of blocks of 32\n");
    free(out);
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what)) n++;
    return n;
}

TEST_CASE(report, page_holds_names_as_text) {
    char *text = report("r.html");
    CHECK_EQ_INT(2, count(text, "</script>"));
    CHECK_EQ_INT(0, count(text, "<b>"));
    CHECK_HAS(text, "w\\u003c/script>\\u003cb>&");
    CHECK_EQ_INT(0, count(text, "http"));
    free(text);
}

/* Chromium's version; NULL: there is none, and the case is skipped. */
static bool has_browser(void) {
    char *out;
    int rc = test_command(&out, "chromium --version 2>/dev/null | grep Chrom");
    printf("browser: %s", rc ? "none, a case is skipped\n" : out);
    free(out); /* script/test runs it again */
    return rc == 0;
}

/* What a browser measures of a page: how wide its contents are, the narrowest
   cell of text, and the least contrast of a text with what is behind it, in
   hundredths (WCAG 2 wants 4.5). */
static const char measure[] =
    "const e = f.contentDocument.documentElement, look = getComputedStyle;\n"
    "const light = c => c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)"
    ".map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)"
    ".reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], .05);\n"
    "const behind = n => !n ? 'rgb(255, 255, 255)' : "
    "look(n).backgroundColor.endsWith(', 0)') ? behind(n.parentElement) "
    ": look(n).backgroundColor;\n"
    "const contrast = n => [light(look(n).color), light(behind(n))]"
    ".sort((a, b) => b - a).reduce((a, b) => a / b);\n"
    "const texts = [...e.querySelectorAll('body *')].filter(n => "
    "!n.closest('svg, script, option') && [...n.childNodes].some(t => "
    "t.nodeType === 3 && t.data.trim()));\n"
    "const cells = [...e.querySelectorAll('td:not(.number):not(.short)')];\n"
    "document.body.innerHTML = '<i>wide ' + e.scrollWidth + '</i><i>cell ' "
    "+ Math.min(...cells.map(c => c.offsetWidth)) + '</i><i>contrast ' "
    "+ Math.floor(100 * Math.min(...texts.map(contrast))) + '</i><i>paper ' "
    "+ look(e.querySelector('body')).backgroundColor + '</i>' + e.outerHTML;";

static int measured(const char *out, const char *what) {
    char begin[40];
    snprintf(begin, sizeof begin, "<i>%s", what);
    const char *at = strstr(out, begin);
    return at ? atoi(at + strlen(begin)) : -1;
}

/* The document of a page after its script has run, in a window of that
   width, and what is measured of it. */
static char *in_browser(const char *page, int width, bool dark) {
    char *out, frame[4096];
    int n = snprintf(frame, sizeof frame,
                     "<body><iframe id=f src='%s' "
                     "style='width:%dpx;height:900px'></iframe>"
                     "<script>f.onload = () => {\n%s\n};</script>",
                     page, width, measure);
    REQUIRE(n > 0 && (size_t)n < sizeof frame);
    REQUIRE(test_write_file(test_tmp("frame.html"), frame, strlen(frame)));
    int rc = test_command(
        &out,
        "cd '%s' && HOME=$PWD timeout 60 chromium --headless --no-sandbox "
        "--disable-gpu --allow-file-access-from-files "
        "--user-data-dir=$PWD/profile --enable-logging=stderr "
        "--window-size=1400,1000 --blink-settings=preferredColorScheme=%d "
        "--dump-dom \"file://$PWD/frame.html\"",
        test_tmpdir(), !dark);
    CHECK_MSG(rc == 0, "status %d: %s", rc, out);
    CHECK_EQ_INT(0, count(out, "Uncaught"));
    CHECK_MSG(measured(out, "contrast ") >= 450, "a text of contrast %d",
              measured(out, "contrast "));
    CHECK(measured(out, "wide ") > 0 && measured(out, "wide ") <= width);
    CHECK((measured(out, "paper rgb(") < 64) == dark);
    return out;
}

/* In a real browser, on a screen and on a phone: the document after the page's
   script has run. */
TEST_CASE(report, page_in_a_browser) {
    if (!has_browser()) SKIP("no chromium");
    char *out, *text = report("r.html");
    out = in_browser("r.html", 420, true);
    /* names, not columns of letters */
    CHECK_MSG(measured(out, "cell ") >= 140, "%d", measured(out, "cell "));
    free(out);
    out = in_browser("r.html", 1280, false);
    CHECK(measured(out, "wide ") > 420);
    CHECK_HAS(out, "<h1 id=\"title\">m.amp</h1>");
    CHECK_HAS(out, ">w&lt;/script&gt;&lt;b&gt;&amp;</td>");
    CHECK_HAS(out, ">one/two</td>"); /* a part of the model */
    CHECK_HAS(out, ">train on cpu</option>");
    CHECK_HAS(out, ">gradient of v</text>");
    CHECK_HAS(out, ">adamw v</text>");
    CHECK_HAS(out, "<dd>--loss mse --precision bf16");
    /* a box for every kernel of the training program */
    char *train = strstr(text, "{\"program\":\"train\",\"target\":\"cpu\","
                               "\"kernels\"");
    REQUIRE(train != NULL);
    *strstr(train, "\"launches\"") = 0;
    CHECK_EQ_INT(count(train, "\"kind\":\"point\"") +
                     count(train, "\"kind\":\"row\"") +
                     count(train, "\"kind\":\"anchor\"") +
                     count(train, "\"kind\":\"lib\""),
                 count(out, "<rect "));
    CHECK(count(out, "<path ") > 3);
    free(out);
    free(text);
}

/* Three epochs with an evaluation after each: one chart of both losses, and
   what did not change in a line. */
TEST_CASE(report, page_of_a_run_in_a_browser) {
    if (!has_browser()) SKIP("no chromium");
    static const char x[] = "0,1,2,3,4,5,6,7\n7,6,5,4,3,2,1,0\n";
    static const char t[] = "0,1,0\n1,0,1\n";
    char *out;
    free(report("r.html")); /* for m.so */
    REQUIRE(test_write_file(test_tmp("x.csv"), x, strlen(x)) &&
            test_write_file(test_tmp("t.csv"), t, strlen(t)));
    int rc = test_command(
        &out,
        "cd '%s' && '%s' run m.so --feed x=x.csv --feed target=t.csv "
        "--eval-feed x=x.csv --eval-feed target=t.csv --epochs 3 --lr 1e-3 "
        "--report run.html",
        test_tmpdir(), test_ampc());
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
    free(in_browser("run.html", 420, true));
    out = in_browser("run.html", 1280, false);
    CHECK(measured(out, "wide ") > 420);
    CHECK_HAS(out, ">loss <small");
    CHECK_HAS(out, ">train </small><small");
    CHECK_HAS(out, ">eval </small>");
    CHECK_HAS(out, ">best: epoch 1</small>");
    CHECK_HAS(out, "Unchanged in the whole run: grad_norm 0, lr 0.001, "
                   "scale 1, skipped 0.");
    CHECK_HAS(out, "<dd>m.amp: x86-64-v2, ");
    CHECK_HAS(out, "<dd>--feed x=x.csv --feed target=t.csv (2 samples)\n");
    CHECK_EQ_INT(2, count(out, "<polyline ")); /* the weights begin at 0 */
    free(out);
}
