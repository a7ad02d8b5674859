// SPDX-License-Identifier: Apache-2.0

// Package ampc trains with modules that the compiler `ampc` made: one file over
// the C API (ampc.h, two folders up or where CGO_CFLAGS says).
//
//	m, err := ampc.Load("train.so")
//	s, err := m.Open("cpu", 0)
//	metrics, err := s.Step(ampc.In("x", x), ampc.In("target", t))
//
// A call that fails gives an *Error with the status of ampc.h and the session's
// message.  One goroutine at a time uses a session.
package ampc

/*
#cgo CFLAGS: -I${SRCDIR}/..
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include <string.h>
#include "ampc.h"

static const ampc_api *go_load(const char *path, void **lib, char *err, size_t n) {
	return ampc_load(path, lib, err, n);
}
static void go_info(const ampc_api *a, ampc_module_info *i) { a->describe(a->module, i); }
static ampc_status go_open(const ampc_api *a, const ampc_options *o, ampc_session **s,
		char *err, size_t n) {
	return a->open(a->module, o, s, err, n);
}
static void go_close(const ampc_api *a, ampc_session *s) { a->close(s); }
static const char *go_error(const ampc_api *a, ampc_session *s) { return a->error(s); }
static const char *go_notice(const ampc_api *a, ampc_session *s) { return a->notice(s); }
static ampc_status go_step(const ampc_api *a, ampc_session *s, const ampc_input *in, size_t n,
		ampc_metrics *m) {
	return a->step(s, in, n, m);
}
static ampc_status go_evaluate(const ampc_api *a, ampc_session *s, const ampc_input *in, size_t n,
		int64_t valid, ampc_eval *e) {
	return a->evaluate(s, in, n, valid, e);
}
static ampc_status go_predict(const ampc_api *a, ampc_session *s, const ampc_input *in, size_t n,
		int64_t valid, ampc_output *out) {
	return a->predict(s, in, n, valid, out, 1);
}
static ampc_status go_read(const ampc_api *a, ampc_session *s, ampc_output *out) {
	return a->read_variable(s, out->name, out);
}
static ampc_status go_write(const ampc_api *a, ampc_session *s, const ampc_input *in) {
	return a->write_variable(s, in->name, in);
}
static ampc_status go_get(const ampc_api *a, ampc_session *s, const char *name, double *v) {
	return a->get_hyper(s, name, v);
}
static ampc_status go_set(const ampc_api *a, ampc_session *s, const char *name, double v) {
	return a->set_hyper(s, name, v);
}
static ampc_status go_objective(const ampc_api *a, ampc_session *s, const char *name) {
	return a->objective(s, name);
}
static ampc_status go_save(const ampc_api *a, ampc_session *s, const char *p) { return a->save(s, p); }
static ampc_status go_resume(const ampc_api *a, ampc_session *s, const char *p) { return a->resume(s, p); }
static ampc_status go_load_file(const ampc_api *a, ampc_session *s, const char *p) { return a->load(s, p); }
static ampc_status go_save_weights(const ampc_api *a, ampc_session *s, const char *p) {
	return a->save_weights(s, p);
}
*/
import "C"

import (
	"strings"
	"unsafe"
)

// Element types of inputs, outputs and variables.
type Element interface {
	~uint8 | ~int32 | ~int64 | ~float32 | ~float64
}

func dtypeOf[T Element]() C.int32_t {
	var v T
	switch any(v).(type) {
	case uint8:
		return C.AMPC_DTYPE_U8
	case int32:
		return C.AMPC_DTYPE_I32
	case int64:
		return C.AMPC_DTYPE_I64
	case float32:
		return C.AMPC_DTYPE_F32
	}
	return C.AMPC_DTYPE_F64
}

// Error of a call; Status is ampc_status, 0 where a module cannot be loaded.
type Error struct {
	Status  int
	Message string
}

func (e *Error) Error() string { return e.Message }

// Metrics of one step, as ampc_metrics.
type Metrics struct {
	Loss, GradNorm, Scale, LR float64
	Updated, Applied          bool
	Step, Tried, Skipped      int64
}

// Eval is sums over samples: loss = LossNum / LossDen, accuracy = Correct / Count.
type Eval struct {
	LossNum, LossDen, Correct, Count, CorrectTop float64
	Samples                                      int64
	TopK                                         int
}

// Input is one input of a call: its name and all its elements.
type Input struct {
	name  string
	data  unsafe.Pointer
	bytes int
	dtype C.int32_t
}

// In names all elements of an input.
func In[T Element](name string, data []T) Input {
	var v T
	i := Input{name, nil, len(data) * int(unsafe.Sizeof(v)), dtypeOf[T]()}
	if len(data) > 0 {
		i.data = unsafe.Pointer(&data[0])
	}
	return i
}

// Module is a compiled module; it stays loaded.
type Module struct{ api *C.ampc_api }

// Load takes a path; "train.so" means ./train.so, as with `ampc run`.
func Load(path string) (*Module, error) {
	var lib unsafe.Pointer
	var why [400]C.char
	if err := whole(path, "path"); err != nil {
		return nil, err
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	api := C.go_load(name, &lib, &why[0], C.size_t(len(why)))
	if api == nil {
		return nil, &Error{0, C.GoString(&why[0])}
	}
	return &Module{api}, nil
}

// Batch is samples per call; 0 when inputs have no batch.
func (m *Module) Batch() int {
	i := C.ampc_module_info{size: C.sizeof_ampc_module_info}
	C.go_info(m.api, &i)
	return int(i.batch)
}

// Session holds weights and state; Close it. Copies of it are one session.
type Session struct{ *handle }

type handle struct {
	api *C.ampc_api
	s   *C.ampc_session
}

// whole: C would end at a byte of 0.
func whole(text, what string) error {
	if strings.IndexByte(text, 0) < 0 {
		return nil
	}
	return &Error{1, what + ": it has a NUL inside"}
}

// Open takes "cpu", "cuda", "cuda:N" or "" for the best; threads 0: all CPUs.
func (m *Module) Open(device string, threads int) (*Session, error) {
	var why [400]C.char
	if threads < 0 || threads > 1024 {
		return nil, &Error{1, "threads: 0 (all) to 1024 are possible"}
	}
	if err := whole(device, "device"); err != nil {
		return nil, err
	}
	o := (*C.ampc_options)(C.calloc(1, C.sizeof_ampc_options))
	defer C.free(unsafe.Pointer(o))
	o.size = C.sizeof_ampc_options
	o.threads = C.int32_t(threads)
	if device != "" {
		o.device = C.CString(device)
		defer C.free(unsafe.Pointer(o.device))
	}
	s := &Session{&handle{api: m.api}}
	if st := C.go_open(m.api, o, &s.s, &why[0], C.size_t(len(why))); st != 0 {
		return nil, &Error{int(st), C.GoString(&why[0])}
	}
	return s, nil
}

// Close ends the session; it may be closed twice.
func (s *Session) Close() {
	C.go_close(s.api, s.s)
	s.s = nil
}

func (s *Session) check(st C.ampc_status) error {
	if st == 0 {
		return nil
	}
	return &Error{int(st), C.GoString(C.go_error(s.api, s.s))}
}

// copied is a copy of Go's memory in C's, which may point to it; for C.free.
func copied(i Input) unsafe.Pointer {
	p := C.malloc(C.size_t(i.bytes + 1))
	if i.bytes > 0 {
		C.memcpy(p, i.data, C.size_t(i.bytes))
	}
	return p
}

func (s *Session) call(in []Input, f func(p *C.ampc_input, n C.size_t) C.ampc_status) error {
	raw := (*C.ampc_input)(C.calloc(C.size_t(len(in)+1), C.sizeof_ampc_input))
	defer C.free(unsafe.Pointer(raw))
	all := unsafe.Slice(raw, len(in)+1)
	for i := range in {
		all[i] = C.ampc_input{size: C.sizeof_ampc_input, name: C.CString(in[i].name),
			data: copied(in[i]), bytes: C.size_t(in[i].bytes), dtype: in[i].dtype, rank: -1}
		defer C.free(unsafe.Pointer(all[i].name))
		defer C.free(unsafe.Pointer(all[i].data))
	}
	return s.check(f(raw, C.size_t(len(in))))
}

// Step makes one optimizer step on one batch.
func (s *Session) Step(in ...Input) (Metrics, error) {
	m := C.ampc_metrics{size: C.sizeof_ampc_metrics}
	err := s.call(in, func(p *C.ampc_input, n C.size_t) C.ampc_status {
		return C.go_step(s.api, s.s, p, n, &m)
	})
	return Metrics{float64(m.loss), float64(m.grad_norm), float64(m.scale), float64(m.lr),
		m.updated != 0, m.applied != 0, int64(m.step), int64(m.tried), int64(m.skipped)}, err
}

// Evaluate adds the first `valid` samples of the batch to sums.
func (s *Session) Evaluate(sums *Eval, valid int, in ...Input) error {
	e := C.ampc_eval{size: C.sizeof_ampc_eval}
	err := s.call(in, func(p *C.ampc_input, n C.size_t) C.ampc_status {
		return C.go_evaluate(s.api, s.s, p, n, C.int64_t(valid), &e)
	})
	sums.LossNum += float64(e.loss_num)
	sums.LossDen += float64(e.loss_den)
	sums.Correct += float64(e.correct)
	sums.Count += float64(e.count)
	sums.CorrectTop += float64(e.correct_top)
	sums.Samples += int64(e.samples)
	sums.TopK = int(e.top_k)
	return err
}

func (s *Session) output(name string, to Input, f func(*C.ampc_output) C.ampc_status) error {
	out := (*C.ampc_output)(C.calloc(1, C.sizeof_ampc_output))
	defer C.free(unsafe.Pointer(out))
	*out = C.ampc_output{size: C.sizeof_ampc_output, name: C.CString(name), data: copied(to),
		bytes: C.size_t(to.bytes), dtype: to.dtype}
	defer C.free(unsafe.Pointer(out.name))
	defer C.free(out.data)
	if err := s.check(f(out)); err != nil {
		return err
	}
	if to.bytes > 0 {
		C.memcpy(to.data, out.data, C.size_t(to.bytes))
	}
	return nil
}

// Predict fills data with the first `valid` samples of an output.
func Predict[T Element](s *Session, output string, data []T, valid int, in ...Input) error {
	return s.output(output, In("", data), func(o *C.ampc_output) C.ampc_status {
		var st C.ampc_status
		_ = s.call(in, func(p *C.ampc_input, n C.size_t) C.ampc_status {
			st = C.go_predict(s.api, s.s, p, n, C.int64_t(valid), o)
			return st
		})
		return st
	})
}

// Read fills data with a variable's value.
func Read[T Element](s *Session, variable string, data []T) error {
	return s.output(variable, In("", data), func(o *C.ampc_output) C.ampc_status {
		return C.go_read(s.api, s.s, o)
	})
}

// Write sets a variable's value.
func Write[T Element](s *Session, variable string, data []T) error {
	return s.call([]Input{In(variable, data)}, func(p *C.ampc_input, n C.size_t) C.ampc_status {
		return C.go_write(s.api, s.s, p)
	})
}

// Hyper is "lr", or what the schedule was compiled with.
func (s *Session) Hyper(name string) (float64, error) {
	var v C.double
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	err := s.check(C.go_get(s.api, s.s, c, &v))
	return float64(v), err
}

// SetHyper sets it.
func (s *Session) SetHyper(name string, value float64) error {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return s.check(C.go_set(s.api, s.s, c, C.double(value)))
}

// Objective says what the next steps are for, of a module with several, and whose
// loss Evaluate tells.
func (s *Session) Objective(name string) error {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return s.check(C.go_objective(s.api, s.s, c))
}

func (s *Session) file(path string, f func(*C.char) C.ampc_status) error {
	if err := whole(path, "path"); err != nil {
		return err
	}
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	return s.check(f(c))
}

// Notice is what the last call, though it succeeded, wants known.
func (s *Session) Notice() string { return C.GoString(C.go_notice(s.api, s.s)) }

// Save writes a checkpoint.
func (s *Session) Save(path string) error {
	return s.file(path, func(p *C.char) C.ampc_status { return C.go_save(s.api, s.s, p) })
}

// Resume takes all of a checkpoint.
func (s *Session) Resume(path string) error {
	return s.file(path, func(p *C.char) C.ampc_status { return C.go_resume(s.api, s.s, p) })
}

// Load takes weights by name from any safetensors file.
func (s *Session) Load(path string) error {
	return s.file(path, func(p *C.char) C.ampc_status { return C.go_load_file(s.api, s.s, p) })
}

// SaveWeights writes parameters and buffers alone.
func (s *Session) SaveWeights(path string) error {
	return s.file(path, func(p *C.char) C.ampc_status { return C.go_save_weights(s.api, s.s, p) })
}
