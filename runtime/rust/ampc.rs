// SPDX-License-Identifier: Apache-2.0
//! Trains with modules that `ampc` compiled: one file over the C API (ampc.h),
//! without dependencies.  `mod ampc;` beside it, or `#[path]`.
//!
//!     let m = ampc::Module::load("train.so")?;
//!     let mut s = ampc::Session::open(&m, Some("cpu"), 0)?;
//!     let loss = s.step(&[ampc::input("x", &x), ampc::input("target", &t)])?.loss;
//!
//! A call that fails gives an `Error` with the status of ampc.h and the
//! session's message.  A session is not Sync: one thread at a time.
#![allow(dead_code)]
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::mem::{size_of, size_of_val};
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(lib: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(lib: *mut c_void) -> c_int;
    fn dlerror() -> *const c_char;
}

const ABI_VERSION: u32 = 1;
const RTLD_NOW: c_int = 2;

#[derive(Debug)]
pub struct Error {
    pub status: i32, // ampc_status; 0: the module cannot be loaded
    pub message: String,
}
impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}", self.message)
    }
}
impl std::error::Error for Error {}
pub type Result<T> = std::result::Result<T, Error>;

/// Element types of inputs and variables; the number is ampc_dtype's.
pub trait Element: Copy + Default {
    const DTYPE: i32;
}
impl Element for u8 {
    const DTYPE: i32 = 1;
}
impl Element for i32 {
    const DTYPE: i32 = 6;
}
impl Element for i64 {
    const DTYPE: i32 = 8;
}
impl Element for f32 {
    const DTYPE: i32 = 11;
}
impl Element for f64 {
    const DTYPE: i32 = 12;
}

// ---- structs of ampc.h: each begins with its size ---------------------------

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ModuleInfo {
    size: usize,
    model: *const c_char,
    info: *const c_char,
    pub graph_hash: u64,
    pub batch: i64,
    pub accumulate: i64,
    pub seed: i64,
    pub trains: i32,
    pub evaluates: i32,
    pub predicts: i32,
    pub nvariable: u32,
    pub arena: u64,
}

#[repr(C)]
struct Options {
    size: usize,
    device: *const c_char,
    threads: i32,
    reserved0: i32,
    rest: [*const c_void; 7], // alloc .. comm
    max_skipped: i32,
    reserved1: i32,
}

#[repr(C)]
struct RawInput {
    size: usize,
    name: *const c_char,
    data: *const c_void,
    bytes: usize,
    dtype: i32,
    rank: i32,
    shape: *const i64,
}

#[repr(C)]
struct RawOutput {
    size: usize,
    name: *const c_char,
    data: *mut c_void,
    bytes: usize,
    dtype: i32,
    reserved0: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Metrics {
    size: usize,
    pub loss: f64,
    pub grad_norm: f64,
    pub scale: f64,
    pub lr: f64,
    pub updated: i32,
    pub applied: i32,
    pub step: i64,
    pub tried: i64,
    pub skipped: i64,
    pub bad_forward: i64,
    pub bad_data: i64,
    pub skip_streak: i64,
}

/// Sums over samples: loss = loss_num / loss_den, accuracy = correct / count.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Eval {
    size: usize,
    pub loss_num: f64,
    pub loss_den: f64,
    pub correct: f64,
    pub count: f64,
    pub samples: i64,
    pub exact: i32,
    pub top_k: i32,
    pub correct_top: f64,
}

type Sess = *mut c_void;
type Unused = *const c_void;

#[repr(C)]
struct Api {
    size: usize,
    abi: u32,
    reserved0: u32,
    module: *const c_void,
    version: *const c_char,
    describe: extern "C" fn(*const c_void, *mut ModuleInfo) -> c_int,
    program_input_output_variable: [Unused; 4],
    open: extern "C" fn(*const c_void, *const Options, *mut Sess, *mut c_char, usize) -> c_int,
    close: extern "C" fn(Sess),
    error: extern "C" fn(Sess) -> *const c_char,
    step: extern "C" fn(Sess, *const RawInput, usize, *mut Metrics) -> c_int,
    sync_micro_step_update_vjp: [Unused; 4],
    evaluate: extern "C" fn(Sess, *const RawInput, usize, i64, *mut Eval) -> c_int,
    predict: extern "C" fn(Sess, *const RawInput, usize, i64, *mut RawOutput, usize) -> c_int,
    read_output: Unused,
    get_hyper: extern "C" fn(Sess, *const c_char, *mut f64) -> c_int,
    set_hyper: extern "C" fn(Sess, *const c_char, f64) -> c_int,
    scaler: Unused,
    read_variable: extern "C" fn(Sess, *const c_char, *mut RawOutput) -> c_int,
    write_variable: extern "C" fn(Sess, *const c_char, *const RawInput) -> c_int,
    save: extern "C" fn(Sess, *const c_char) -> c_int,
    load: extern "C" fn(Sess, *const c_char) -> c_int,
    resume: extern "C" fn(Sess, *const c_char) -> c_int,
    cursor_profile: [Unused; 3],
    notice: extern "C" fn(Sess) -> *const c_char,
    bad_data_nonfinite_load_weights: [Unused; 3],
    save_weights: extern "C" fn(Sess, *const c_char) -> c_int,
    underflow_comm_objective_name: [Unused; 4],
    objective: extern "C" fn(Sess, *const c_char) -> c_int,
}

// ---- modules ----------------------------------------------------------------

fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

fn c_text(s: &str) -> Result<CString> {
    CString::new(s).map_err(|_| Error { status: 1, message: format!("{s:?}: a NUL in a name") })
}

fn unloadable<T>(message: String) -> Result<T> {
    Err(Error { status: 0, message })
}

/// A compiled module; unloaded when it and its sessions are gone.
pub struct Module {
    lib: *mut c_void,
    api: *const Api,
}

impl Module {
    /// "train.so" means ./train.so, as with `ampc run`.
    pub fn load(path: &str) -> Result<Module> {
        let local = if path.contains('/') { path.to_string() } else { format!("./{path}") };
        let name = c_text(&local)?;
        let lib = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
        if lib.is_null() {
            return unloadable(text(unsafe { dlerror() }));
        }
        let entry = unsafe { dlsym(lib, b"ampc_module\0".as_ptr() as *const c_char) };
        let api = if entry.is_null() {
            null()
        } else {
            let f: extern "C" fn(u32) -> *const Api = unsafe { std::mem::transmute(entry) };
            f(ABI_VERSION)
        };
        let m = Module { lib, api };
        if api.is_null() || m.api().size < size_of::<Api>() {
            return unloadable(format!("{path}: not a module of this version of ampc"));
        }
        Ok(m)
    }

    fn api(&self) -> &Api {
        unsafe { &*self.api }
    }

    pub fn info(&self) -> ModuleInfo {
        let mut i: ModuleInfo = unsafe { std::mem::zeroed() };
        i.size = size_of::<ModuleInfo>();
        (self.api().describe)(self.api().module, &mut i);
        i
    }

    pub fn model(&self) -> String {
        text(self.info().model)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        unsafe { dlclose(self.lib) };
    }
}

// ---- sessions ---------------------------------------------------------------

/// One input of a call: its name and all its elements.
pub struct Input<'a> {
    name: CString,
    raw: RawInput,
    data: PhantomData<&'a [u8]>,
}

/// A name with a NUL gives an input that no module has.
pub fn input<'a, T: Element>(name: &str, data: &'a [T]) -> Input<'a> {
    let raw = RawInput {
        size: size_of::<RawInput>(),
        name: null(),
        data: data.as_ptr() as *const c_void,
        bytes: size_of_val(data),
        dtype: T::DTYPE,
        rank: -1,
        shape: null(),
    };
    Input { name: CString::new(name).unwrap_or_default(), raw, data: PhantomData }
}

fn raw_inputs(inputs: &[Input]) -> Vec<RawInput> {
    inputs.iter().map(|i| RawInput { name: i.name.as_ptr(), ..i.raw }).collect()
}

pub struct Session<'m> {
    m: &'m Module,
    s: Sess,
}

impl<'m> Session<'m> {
    /// device: "cpu", "cuda", "cuda:N"; None: the best.  threads 0: all CPUs.
    pub fn open(m: &'m Module, device: Option<&str>, threads: i32) -> Result<Session<'m>> {
        let device = device.map(c_text).transpose()?;
        let options = Options {
            size: size_of::<Options>(),
            device: device.as_ref().map_or(null(), |d| d.as_ptr()),
            threads,
            reserved0: 0,
            rest: [null(); 7],
            max_skipped: 0,
            reserved1: 0,
        };
        let (mut s, mut why) = (null_mut(), [0 as c_char; 400]);
        let status = (m.api().open)(m.api().module, &options, &mut s, why.as_mut_ptr(), why.len());
        if status != 0 {
            return Err(Error { status, message: text(why.as_ptr()) });
        }
        Ok(Session { m, s })
    }

    fn check(&self, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        Err(Error { status, message: text((self.m.api().error)(self.s)) })
    }

    /// One optimizer step on one batch.
    pub fn step(&mut self, inputs: &[Input]) -> Result<Metrics> {
        let raw = raw_inputs(inputs);
        let mut out = Metrics { size: size_of::<Metrics>(), ..Default::default() };
        self.check((self.m.api().step)(self.s, raw.as_ptr(), raw.len(), &mut out))?;
        Ok(out)
    }

    /// What the next steps are for, of a module with several objectives, and
    /// whose loss `evaluate` tells.
    pub fn objective(&mut self, name: &str) -> Result<()> {
        let name = c_text(name)?;
        self.check((self.m.api().objective)(self.s, name.as_ptr()))
    }

    /// Adds the first `valid` samples of the batch to `sums`.
    pub fn evaluate(&mut self, inputs: &[Input], valid: i64, sums: &mut Eval) -> Result<()> {
        let raw = raw_inputs(inputs);
        sums.size = size_of::<Eval>();
        self.check((self.m.api().evaluate)(self.s, raw.as_ptr(), raw.len(), valid, sums))
    }

    /// The first `valid` samples of an output of `n` elements in all.
    pub fn predict<T: Element>(
        &mut self, inputs: &[Input], valid: i64, output: &str, n: usize,
    ) -> Result<Vec<T>> {
        let (raw, name) = (raw_inputs(inputs), c_text(output)?);
        let mut data = vec![T::default(); n];
        let mut out = raw_output(&name, &mut data);
        self.check((self.m.api().predict)(self.s, raw.as_ptr(), raw.len(), valid, &mut out, 1))?;
        Ok(data)
    }

    pub fn read<T: Element>(&self, variable: &str, n: usize) -> Result<Vec<T>> {
        let name = c_text(variable)?;
        let mut data = vec![T::default(); n];
        let mut out = raw_output(&name, &mut data);
        self.check((self.m.api().read_variable)(self.s, name.as_ptr(), &mut out))?;
        Ok(data)
    }

    pub fn write<T: Element>(&mut self, variable: &str, data: &[T]) -> Result<()> {
        let i = input(variable, data);
        let raw = RawInput { name: i.name.as_ptr(), ..i.raw };
        self.check((self.m.api().write_variable)(self.s, raw.name, &raw))
    }

    /// "lr", and what the schedule was compiled with.
    pub fn hyper(&self, name: &str) -> Result<f64> {
        let (name, mut v) = (c_text(name)?, 0.0);
        self.check((self.m.api().get_hyper)(self.s, name.as_ptr(), &mut v))?;
        Ok(v)
    }

    pub fn set_hyper(&mut self, name: &str, value: f64) -> Result<()> {
        let name = c_text(name)?;
        self.check((self.m.api().set_hyper)(self.s, name.as_ptr(), value))
    }

    fn file(&self, f: extern "C" fn(Sess, *const c_char) -> c_int, path: &str) -> Result<String> {
        let path = c_text(path)?;
        self.check(f(self.s, path.as_ptr()))?;
        Ok(text((self.m.api().notice)(self.s)))
    }

    /// Checkpoints and weights; each gives what the call wants known, or "".
    pub fn save(&mut self, path: &str) -> Result<String> {
        self.file(self.m.api().save, path)
    }
    pub fn resume(&mut self, path: &str) -> Result<String> {
        self.file(self.m.api().resume, path)
    }
    pub fn load(&mut self, path: &str) -> Result<String> {
        self.file(self.m.api().load, path)
    }
    pub fn save_weights(&mut self, path: &str) -> Result<String> {
        self.file(self.m.api().save_weights, path)
    }
}

fn raw_output<T: Element>(name: &CStr, data: &mut [T]) -> RawOutput {
    RawOutput {
        size: size_of::<RawOutput>(),
        name: name.as_ptr(),
        data: data.as_mut_ptr() as *mut c_void,
        bytes: size_of_val(data),
        dtype: T::DTYPE,
        reserved0: 0,
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        (self.m.api().close)(self.s);
    }
}
