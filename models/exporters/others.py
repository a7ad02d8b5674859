# SPDX-License-Identifier: Apache-2.0
"""Models of JAX, Keras, TensorFlow, scikit-learn and Paddle for exporters.py, each trained by its framework."""
import contextlib, io, itertools
import numpy as np
import onnx
from case import Case, RATE, STEPS, held, neutral_paths

draw = lambda seed, *d: np.random.RandomState(seed).randn(*d).astype("f")
IDS = np.random.RandomState(1).randint(0, 7, (6, 5))


def named_by_content(path, first, last):
    """Parameters by the names of the initializers that hold their first values; the others stay."""
    in_file, params, lost = held(path), {}, []
    for i, (a, b) in enumerate(zip(map(np.asarray, first), map(np.asarray, last))):
        for order in itertools.permutations(range(a.ndim)):  # a convolution's kernel lies otherwise in ONNX
            turned = a.transpose(order).ravel()
            names = [k for k, v in in_file.items() if v.dtype == a.dtype and v.size == a.size and np.array_equal(v.ravel(), turned)
                     and k not in params]
            if names: break
        if names: params[names[0]] = b.transpose(order)
        elif not np.array_equal(a, b): lost.append(i)
    if lost:  # a tensor that was made of such ones trains for them: the losses tell
        print(f"{path}: trained, and not in the file: {lost}")
        return params, {}, []
    return params, {}, [k for k, v in in_file.items() if v.dtype == np.float32 and k not in params]


def first_input(path, feed):
    """The file's names of the inputs, in order."""
    return dict(zip([i.name for i in onnx.load(path).graph.input], feed))


def bound(path, n):
    """Options that bind the batch."""
    d = onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0]
    return ["--dim", f"{d.dim_param}={n}"] if d.dim_param else []


# ---- jax2onnx ----------------------------------------------------------------

def jax_models():
    import jax, jax.numpy as jnp
    from flax import nnx
    init = nnx.initializers.normal
    class Fixed(nnx.Variable): pass

    def linear(i, o, seed=0, **k): return nnx.Linear(i, o, rngs=nnx.Rngs(seed), bias_init=init(), **k)

    class Base(nnx.Module):
        def __init__(s): s.l = linear(4, 4); s.m = linear(4, 3, 1); s.more()
        def more(s): pass

    class Numbers(Base):
        def __call__(s, x): return s.m(jnp.tanh(s.l(x) * 0.5) * jnp.sqrt(2.0) + 0.25)
    class Norm(Base):
        def more(s): s.n = nnx.LayerNorm(4, rngs=nnx.Rngs(1), scale_init=init(1.0), bias_init=init())
        def __call__(s, x): return s.m(jnp.tanh(s.n(s.l(x)) * 0.5) * 1.5)
    class Normalised(Base):
        def __call__(s, x): return s.m(jnp.tanh(s.l((x - jnp.array([.1, .2, .3, .4])) / jnp.array([.5, .6, .7, .8]))))
    class Stopped(Base):
        def __call__(s, x):
            h = jnp.tanh(s.l(x)); q = jnp.round(h * 4) / 4
            return s.m(h + jax.lax.stop_gradient(q - h)) * 2.0
    class Gains(Base):
        def more(s): s.gain = nnx.Param(jnp.array([.5, 1., 1.5, 2.]))
        def __call__(s, x): return s.m(jnp.tanh(s.l(x)) * s.gain[...])
    class Clipped(Base):
        def __call__(s, x): return s.m(jnp.clip(nnx.gelu(s.l(x)), -0.9, 0.9) + jnp.arange(4.0) / 3)
    class Scalar(Base):
        def more(s): s.scale = nnx.Param(jnp.array(0.7))
        def __call__(s, x): return s.m(jnp.tanh(s.l(x) * s.scale[...]))
    class Buffer(Base):
        """A fixed matrix and row, which are no Param."""
        def more(s): s.b = Fixed(jnp.array(draw(5, 4, 4))); s.r = Fixed(jnp.array(draw(6, 4)))
        def __call__(s, x): return s.m(jnp.tanh(s.l(x) @ s.b[...] + s.r[...]))
    class Literal(Base):
        def __call__(s, x): return s.m(jnp.tanh(s.l(x) @ jnp.array(draw(7, 4, 4))))
    class LiteralBatch(Base):
        def __call__(s, x): return s.m(jnp.tanh(s.l(x[:, None]) @ jnp.array(draw(7, 4, 4))))[:, 0]
    class Tied(Base):
        def __call__(s, x): return s.m(jnp.tanh(s.l(jnp.tanh(s.l(x))))) @ s.m.kernel[...].T
    class FrozenPart(Base):
        def __call__(s, x):
            w = jax.lax.stop_gradient(s.l.kernel[...])
            return s.m(jnp.tanh(x @ w + s.l.bias[...]))
    class Target(Base):
        def __call__(s, x):
            h = jnp.tanh(s.l(x)); y = s.m(h)
            return y * jax.lax.stop_gradient(jax.nn.softmax(y)) + s.m(jax.lax.stop_gradient(h))
    class Rms(Base):
        def more(s): s.n = nnx.RMSNorm(4, rngs=nnx.Rngs(1), scale_init=init(1.0))
        def __call__(s, x): return s.m(s.n(s.l(x)))
    class Dropped(Base):
        def more(s): s.d = nnx.Dropout(0.5, deterministic=True, rngs=nnx.Rngs(0))
        def __call__(s, x): return s.m(s.d(nnx.silu(s.l(x))))
    class Masked(Base):
        def __call__(s, x):
            a = s.l(x) @ x.T / 2.0; a = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), a, -jnp.inf)
            return s.m(jax.nn.softmax(a) @ x)
    class Kinks(Base):
        def __call__(s, x):
            h = s.l(x); h = jax.nn.leaky_relu(h) + jax.nn.relu6(h) + jax.nn.elu(h) + jnp.maximum(h, 0.1) + jnp.abs(h)
            return s.m(jnp.where(h > 0, h, 0.1 * h))
    class Conv(nnx.Module):
        def __init__(s): s.c = nnx.Conv(1, 3, (2,), rngs=nnx.Rngs(0), bias_init=init()); s.m = linear(3, 3)
        def __call__(s, x): return s.m(jnp.tanh(s.c(x[..., None])).mean(1))
    class Lora(Base):
        def more(s): s.a = nnx.Param(jnp.array(draw(3, 4, 2))); s.b = nnx.Param(jnp.array(draw(4, 2, 4)) * .1)
        def __call__(s, x): return s.m(jnp.tanh(jax.lax.stop_gradient(s.l(x)) + x @ s.a[...] @ s.b[...] * 2.0))
    class Gru(Base):
        def more(s): s.g = nnx.GRUCell(4, 4, rngs=nnx.Rngs(2))
        def __call__(s, x):
            h = jnp.zeros((6, 4))
            for _ in range(2): h, _y = s.g(h, x)
            return s.m(h)
    class Attention(Base):
        def more(s): s.a = nnx.MultiHeadAttention(2, 4, qkv_features=4, rngs=nnx.Rngs(2), decode=False, bias_init=init())
        def __call__(s, x): return s.m(s.a(s.l(x)[None])[0])
    class Embedded(nnx.Module):
        ids = True
        def __init__(s): s.e = nnx.Embed(7, 4, rngs=nnx.Rngs(0)); s.p = nnx.Param(jnp.array(draw(2, 5, 4))); s.m = linear(4, 3)
        def __call__(s, i): return s.m(jnp.tanh(s.e(i) + s.p[...])).mean(1)
    class ScanStop(Base):
        def more(s): s.c = linear(4, 4, 3)
        def __call__(s, x):
            w, b = s.c.kernel[...], s.c.bias[...]
            def step(h, i): h = jnp.tanh(jax.lax.stop_gradient(h) @ w + b + i); return h, h
            return s.m(jax.lax.scan(step, jnp.zeros((6, 4)), jnp.stack([x, x * 2, x - 1]))[1].sum(0) + s.l(x))
    class Exponent(Base):
        def more(s): s.p = nnx.Param(jnp.array([1.5, 2., 1., .7]))
        def __call__(s, x): return s.m((jnp.abs(s.l(x)) + .2) ** s.p[...])
    class ClipLearned(Base):
        def more(s): s.a = nnx.Param(jnp.array([.4, .3, .5, .2]))
        def __call__(s, x): return s.m(jnp.clip(jnp.tanh(s.l(x)), -s.a[...], s.a[...]))
    class MaxParam(Base):
        def more(s): s.a = nnx.Param(jnp.array([.1, -.3, .2, 0.]))
        def __call__(s, x): return s.m(jnp.maximum(jnp.tanh(s.l(x)), s.a[...]))

    @jax.custom_vjp
    def rounded(x): return jnp.round(x)
    rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))
    @jax.custom_vjp
    def backwards(x): return x
    backwards.defvjp(lambda x: (x, None), lambda _, g: (-g,))
    class CustomRound(Base):
        def __call__(s, x): return s.m(rounded(jnp.tanh(s.l(x)) * 3) / 3)
    class CustomVjp(Base):
        def __call__(s, x): return s.m(backwards(jnp.tanh(s.l(x))))
    class AveragedBare(Base):
        """A normalisation with stored statistics and without parameters."""
        options = ["--batchnorm", "frozen"]
        def more(s):
            s.n = nnx.BatchNorm(4, use_running_average=True, use_bias=False, use_scale=False, rngs=nnx.Rngs(1))
            s.n.mean[...] = jnp.array([.1, -.2, .3, .05]); s.n.var[...] = jnp.array([.8, 1.3, .6, 1.1])
        def __call__(s, x): return s.m(jnp.tanh(s.n(s.l(x))))
    return [AveragedBare, ScanStop, Exponent, ClipLearned, MaxParam, CustomRound, CustomVjp, Numbers, Norm, Normalised, Stopped, Gains, Clipped, Scalar, Buffer, Literal, LiteralBatch, Tied, FrozenPart, Target, Rms, Dropped, Masked, Kinks, Conv, Lora, Gru, Attention, Embedded]


def jax_cases(folder, done):
    import jax
    from flax import nnx
    from jax2onnx import to_onnx
    for make in jax_models():
        name = f"jax2onnx-{make.__name__.lower()}"; path = f"{folder}/{name}.onnx"
        if name in done: continue
        try:
            m = make(); x = IDS.astype(np.int32) if hasattr(make, "ids") else draw(1, 6, 4); target = draw(2, *m(x).shape)
            to_onnx(m, [jax.ShapeDtypeStruct(x.shape, x.dtype)], model_name=name, return_mode="file", output_path=path)
        except Exception as e:
            yield name, "not exported", str(e)[:150]; continue
        neutral_paths(path)
        g, params, rest = nnx.split(m, nnx.Param, ...)
        first, losses = params, []
        f = lambda p: ((nnx.merge(g, p, rest)(x) - target) ** 2).mean()
        for _ in range(STEPS):
            loss, grad = jax.value_and_grad(f)(params); losses.append(float(loss))
            params = jax.tree.map(lambda p, d: p - RATE * d, params, grad)
        yield Case(name, path, ["--loss", "mse", *getattr(make, "options", [])], {**first_input(path, [x]), "target": target}, losses,
                   *named_by_content(path, jax.tree.leaves(first), jax.tree.leaves(params)))


# ---- Keras -------------------------------------------------------------------

def keras_models():
    import keras
    from keras import layers as L, ops as K
    normal = lambda k, s=.5: keras.initializers.RandomNormal(stddev=s, seed=k)
    dense = lambda n, k, **o: L.Dense(n, kernel_initializer=normal(k), bias_initializer=normal(k + 9, .1), **o)
    tanh = L.Activation("tanh")

    class Stopped(L.Layer):
        def call(s, x): q = K.round(x * 4) / 4; return x + K.stop_gradient(q - x)
    class Buffer(L.Layer):
        def build(s, shape): s.w = s.add_weight(shape=(4, 4), initializer=normal(7), trainable=False, name="fixed"); s.g = s.add_weight(shape=(), initializer=normal(8), name="gain")
        def call(s, x): return K.matmul(x, s.w) * s.g
    class Table(L.Layer):
        def call(s, x): return x + K.convert_to_tensor(np.linspace(-1, 1, 4, dtype="f")) * 0.3
    class Positions(L.Layer):
        def build(s, shape): s.p = s.add_weight(shape=(5, 4), initializer=normal(6), name="pos")
        def call(s, x): return x + s.p

    def numbers(i): return dense(3, 2)(tanh(dense(4, 1)(i)) * 2 + 0.5)
    def norm(i): return dense(3, 2)(L.LayerNormalization(gamma_initializer=normal(3), beta_initializer=normal(4))(dense(4, 1)(i)))
    def normalised(i): return dense(3, 2)(L.Normalization(mean=[.1, .2, .3, .4], variance=[.5, .6, .7, .8])(i))
    def rescaled(i): return dense(3, 2)(tanh(dense(4, 1)(L.Rescaling(1 / 127.5, -1)(i))))
    def convolved(i):
        c = L.Conv1D(3, 2, kernel_initializer=normal(1), bias_initializer=normal(5, .1))(L.Reshape((4, 1))(i))
        return dense(3, 2)(L.Flatten()(L.Activation("relu")(c)))
    def stopped(i): return dense(3, 2)(Stopped()(tanh(dense(4, 1)(i))))
    def buffer(i): return dense(3, 2)(tanh(Buffer()(dense(4, 1)(i))))
    def table(i): return dense(3, 2)(tanh(Table()(dense(4, 1)(i))))
    def frozen(i): return dense(3, 2)(tanh(dense(4, 1, trainable=False)(i)))
    def shared(i): d = dense(4, 1); return dense(3, 2)(tanh(d(tanh(d(i)))))
    def dropped(i): return dense(3, 2)(L.Dropout(.0)(L.LeakyReLU()(dense(4, 1)(i))))
    def zeros(i): return L.Dense(3, kernel_initializer=normal(2))(tanh(L.Dense(4, kernel_initializer=normal(1))(i)))
    def batchnorm(i): return dense(3, 2)(tanh(L.BatchNormalization(gamma_initializer=normal(3), beta_initializer=normal(4))(dense(4, 1)(i))))
    def attention(i):
        h = L.Reshape((4, 1))(i); h = dense(4, 1)(h)
        a = L.MultiHeadAttention(2, 2); y = a(h, h)
        for k, v in enumerate(a.trainable_variables): v.assign(draw(20 + k, *v.shape) * .3) # one initializer gives equal biases
        return dense(3, 2)(L.Flatten()(y))
    def recurrent(i): return dense(3, 2)(L.GRU(4, unroll=True, bias_initializer=normal(4, .1))(L.Reshape((4, 1))(i)))
    def prelu(i): return dense(3, 2)(L.PReLU(alpha_initializer=normal(3))(dense(4, 1)(i)))
    def grouped(i):
        c = L.Conv1D(4, 2, kernel_initializer=normal(1), bias_initializer=normal(5, .1))(L.Reshape((4, 1))(i))
        return dense(3, 2)(L.Flatten()(tanh(L.GroupNormalization(2, gamma_initializer=normal(3), beta_initializer=normal(4))(c))))
    def defaults(i): return L.Dense(3)(tanh(L.LayerNormalization()(L.Dense(4)(i))))
    def embedded(i): return dense(3, 2)(L.GlobalAveragePooling1D()(tanh(Positions()(L.Embedding(7, 4, embeddings_initializer=normal(1))(i)))))
    embedded.ids = True
    return [numbers, norm, normalised, rescaled, convolved, stopped, buffer, table, frozen, shared, dropped, zeros, batchnorm, attention, recurrent, prelu, grouped, defaults, embedded]


def keras_cases(folder, done):
    """With the backend of KERAS_BACKEND; most biases are not 0, which tf2onnx drops."""
    import keras
    backend = keras.backend.backend()
    for make, static in itertools.product(keras_models(), [False, True][:1 + (backend == "torch")]):
        name = f"keras-{backend}-{'static-' * static}{make.__name__}"; path = f"{folder}/{name}.onnx"
        if name in done: continue
        try:
            ids = hasattr(make, "ids")
            i = keras.Input((5,), batch_size=6, dtype="int32") if ids else keras.Input((4,), batch_size=6)
            m = keras.Model(i, make(i)); x = IDS.astype("i4") if ids else draw(1, 6, 4); target = draw(2, 6, 3)
            given = {"input_signature": [keras.InputSpec(shape=x.shape, dtype=i.dtype, name="x")]} if static else {}
            m(x)
            with contextlib.redirect_stdout(io.StringIO()): m.export(path, format="onnx", verbose=False, **given)
        except Exception as e:
            yield name, "not exported", str(e)[:150]; continue
        neutral_paths(path)
        m.compile(keras.optimizers.SGD(RATE), "mse"); first = [np.array(v) for v in m.trainable_variables]
        losses = [float(m.train_on_batch(x, target)) for _ in range(STEPS)] if backend == "jax" else \
                 [m.fit(x, target, batch_size=6, shuffle=False, verbose=0).history["loss"][0] for _ in range(STEPS)]
        # constants that Keras hands to tf2onnx as arguments: mean and variance
        feed = {i.name: np.array([[.5, .6, .7, .8] if "Sqrt" in i.name else [.1, .2, .3, .4]], "f") for i in onnx.load(path).graph.input[1:]}
        feed = {**first_input(path, [x]), **feed, "target": target}
        yield Case(name, path, ["--loss", "mse", *bound(path, 6)], feed, losses,
                   *named_by_content(path, first, [np.array(v) for v in m.trainable_variables]))


# ---- TensorFlow --------------------------------------------------------------

def tensorflow_cases(folder, done):
    """Functions over tf.Variable, by tf2onnx alone."""
    import tensorflow as tf, tf2onnx
    if hasattr(tf2onnx, "absent"): return

    class Base(tf.Module):
        def __init__(s):
            s.w, s.b, s.v, s.c = (tf.Variable(draw(*k), name=n) for n, k in (("w", (3, 4, 4)), ("b", (4, 4)), ("v", (5, 4, 3)), ("c", (6, 3))))
            s.more()
        def more(s): pass
        def l(s, x): return x @ s.w + s.b
        def m(s, x): return x @ s.v + s.c

    class Plain(Base):
        def call(s, x): return s.m(tf.tanh(s.l(x)) * 2.0 + 0.5)
    class Constants(Base):
        def call(s, x): return s.m(tf.tanh(s.l(x) @ tf.constant(draw(7, 4, 4)) + draw(8, 4)))
    class Captured(Base):
        """Tensors that exist before the call become inputs of the file."""
        def more(s): s.t = tf.constant(draw(7, 4, 4)); s.r = tf.constant(draw(8, 4))
        def call(s, x): return s.m(tf.tanh(s.l(x) @ s.t + s.r))
    class Untrained(Base):
        def more(s): s.t = tf.Variable(draw(7, 4, 4), trainable=False, name="t")
        def call(s, x): return s.m(tf.tanh(s.l(x) @ s.t))
    class Stopped(Base):
        def call(s, x): h = tf.tanh(s.l(x)); return s.m(h * tf.stop_gradient(h))
    class Straight(Base):
        def call(s, x): h = tf.tanh(s.l(x)); return s.m(h + tf.stop_gradient(tf.round(h * 4) / 4 - h))
    class Scalars(Base):
        def more(s): s.k = tf.Variable(0.7, name="k"); s.g = tf.Variable(draw(9, 4), name="g")
        def call(s, x): return s.m(tf.tanh(s.l(x) * s.k) * s.g)
    class Tied(Base):
        def call(s, x): return s.m(tf.tanh(tf.tanh(s.l(x)) @ tf.transpose(s.w)))
    class Normalised(Base):
        def call(s, x): return s.m(tf.tanh(s.l((x - [.1, .2, .3, .4]) / [.5, .6, .7, .8])))
    class LayerNorm(Base):
        def more(s): s.g = tf.Variable(draw(9, 4), name="gamma"); s.o = tf.Variable(draw(10, 4), name="beta")
        def call(s, x):
            h = s.l(x); mean, var = tf.nn.moments(h, [-1], keepdims=True)
            return s.m(tf.nn.batch_normalization(h, mean, var, s.o, s.g, 1e-3))
    class Kinks(Base):
        def call(s, x): h = s.l(x); return s.m(tf.nn.leaky_relu(h) + tf.nn.relu6(h) + tf.nn.elu(h) + tf.clip_by_value(h, -.5, .5) + tf.where(h > 0, h, 0.1 * h))
    class Conv(Base):
        def more(s): s.k = tf.Variable(draw(9, 2, 1, 3), name="k")
        def call(s, x): return tf.reduce_mean(tf.tanh(tf.nn.conv1d(x[..., None], s.k, 1, "SAME")), 1) @ s.v[:3] + s.c
    class Rows(Base):
        def more(s): s.e = tf.Variable(draw(9, 7, 4), name="e")
        def call(s, x): return s.m(tf.tanh(s.l(x) + tf.gather(s.e, [0, 1, 1, 5, 6, 2])))

    for make in (Plain, Constants, Captured, Untrained, Stopped, Straight, Scalars, Tied, Normalised, LayerNorm, Kinks, Conv, Rows):
        name = f"tf2onnx-{make.__name__.lower()}"; path = f"{folder}/{name}.onnx"
        if name in done: continue
        m = make(); x = draw(1, 6, 4); target = draw(2, 6, 3)
        try: tf2onnx.convert.from_function(tf.function(m.call), [tf.TensorSpec((6, 4), tf.float32, name="x")], opset=18, output_path=path)
        except Exception as e:
            yield name, "not exported", str(e)[:150]; continue
        neutral_paths(path)
        v = m.trainable_variables; first, losses = [a.numpy() for a in v], []
        for _ in range(STEPS):
            with tf.GradientTape() as t: loss = tf.reduce_mean((m.call(x) - target) ** 2)
            losses.append(float(loss))
            for a, d in zip(v, t.gradient(loss, v)):
                if d is not None: a.assign_sub(RATE * tf.convert_to_tensor(d))
        captured = {i.name: t.numpy() for i in onnx.load(path).graph.input[1:] for t in vars(m).values()
                    if isinstance(t, tf.Tensor) and t.shape == [d.dim_value for d in i.type.tensor_type.shape.dim]}
        yield Case(name, path, ["--loss", "mse"], {**first_input(path, [x]), **captured, "target": target}, losses,
                   *named_by_content(path, first, [a.numpy() for a in v]))


# ---- scikit-learn ------------------------------------------------------------

def sklearn_cases(folder, done):
    """Its models after a fit, trained on by gradients in double of what they compute."""
    from sklearn.neural_network import MLPRegressor
    from sklearn.linear_model import LinearRegression, Ridge, SGDRegressor, Lasso
    from sklearn.preprocessing import StandardScaler, MinMaxScaler
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from skl2onnx import to_onnx
    x = draw(1, 6, 4); target = draw(2, 6, 1)
    mlp = lambda a="tanh", n=(5,): MLPRegressor(hidden_layer_sizes=n, activation=a, solver="sgd", max_iter=1, batch_size=6, learning_rate_init=RATE, momentum=0, alpha=0, shuffle=False, random_state=0)
    acts = {"tanh": (np.tanh, lambda h: 1 - h * h), "relu": (lambda z: np.maximum(z, 0), lambda h: (h > 0) * 1.), "identity": (lambda z: z, np.ones_like),
            "logistic": (lambda z: 1 / (1 + np.exp(-z)), lambda h: h * (1 - h))}

    def trained(m, x):
        """Losses and last values of the layers of m on x."""
        last = m.steps[-1][1] if hasattr(m, "steps") else m
        if hasattr(m, "steps"): x = m[:-1].transform(x).astype("f")
        mlp = hasattr(last, "coefs_")
        w = [v.astype("f") for v in (last.coefs_ if mlp else [np.reshape(last.coef_, (1, -1)).T])]
        b = [np.ravel(v).astype("f") for v in (last.intercepts_ if mlp else [last.intercept_])]
        first = w + b; w, b = [v.astype(float) for v in w], [v.astype(float) for v in b]; losses = []
        act, slope = acts[last.activation if mlp else "identity"]
        for _ in range(STEPS):
            h = [x.astype(float)]
            for k in range(len(w)): z = h[-1] @ w[k] + b[k]; h.append(act(z) if k + 1 < len(w) else z)
            y = h[-1]; losses.append(float(((y - target) ** 2).mean())); d = 2 * (y - target) / y.size
            for k in reversed(range(len(w))):
                dw, db = h[k].T @ d, d.sum(0)
                d = (d @ w[k].T) * slope(h[k]); w[k] = w[k] - RATE * dw; b[k] = b[k] - RATE * db
        return losses, first, w + b

    models = {"regressor": mlp(), "relu": mlp("relu", (5, 3)), "logistic": mlp("logistic"), "identity": mlp("identity"), "linear": LinearRegression(), "ridge": Ridge(), "lasso": Lasso(.01),
              "sgd": SGDRegressor(max_iter=2, tol=None, random_state=0), "scaled": make_pipeline(StandardScaler(), mlp()), "minmax": make_pipeline(MinMaxScaler(), Ridge()), "pca": make_pipeline(StandardScaler(), PCA(3), mlp())}
    for k, m in models.items():
        name = f"sklearn-{k}"; path = f"{folder}/{name}.onnx"
        if name in done: continue
        try:
            m.fit(x, target[:, 0]); proto = to_onnx(m, x)
        except Exception as e:
            yield name, "not exported", str(e)[:150]; continue
        del proto.metadata_props[:]; proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 6
        onnx.save(proto, path); losses, first, last = trained(m, x)
        yield Case(name, path, ["--loss", "mse"], {"X": x, "target": target}, losses, *named_by_content(path, first, last))


# ---- Paddle ------------------------------------------------------------------

def paddle_cases(folder, done):
    import paddle, paddle.nn as nn, paddle.nn.functional as F
    paddle.seed(0)
    T = lambda seed, *d: paddle.to_tensor(draw(seed, *d))
    linear = lambda i, o, k: nn.Linear(i, o, weight_attr=paddle.ParamAttr(initializer=nn.initializer.Assign(draw(k, i, o))), bias_attr=paddle.ParamAttr(initializer=nn.initializer.Assign(draw(k + 1, o))))
    free = lambda v: paddle.create_parameter(list(v.shape), "float32", default_initializer=nn.initializer.Assign(v))

    class Base(nn.Layer):
        def __init__(self): super().__init__(); self.l = linear(4, 4, 3); self.m = linear(4, 3, 5); self.more()
        def more(self): pass

    class Numbers(Base):
        def forward(self, x): return self.m(paddle.tanh(self.l(x)) * 2 + 0.5)
    class Buffers(Base):
        def more(self): self.register_buffer("mean", T(7, 4)); self.register_buffer("proj", T(8, 4, 4))
        def forward(self, x): return self.m(paddle.tanh(self.l(x - self.mean) @ self.proj))
    class Norm(Base):
        def more(self): self.n = nn.LayerNorm(4)
        def forward(self, x): return self.m(paddle.tanh(self.n(self.l(x))))
    class Normalised(Base):
        def forward(self, x): return self.m(paddle.tanh(self.l((x - paddle.to_tensor([.1, .2, .3, .4])) / paddle.to_tensor([.5, .6, .7, .8]))))
    class Stopped(Base):
        def forward(self, x): h = paddle.tanh(self.l(x)); return self.m(h * h.detach())
    class Straight(Base):
        def forward(self, x): h = paddle.tanh(self.l(x)); return self.m(h + (paddle.round(h * 4) / 4 - h).detach())
    class Frozen(Base):
        def more(self):
            for p in self.l.parameters(): p.stop_gradient = True
        def forward(self, x): return self.m(paddle.tanh(self.l(x)))
    class Tied(Base):
        def forward(self, x): return self.m(paddle.tanh(self.l(paddle.tanh(self.l(x)))))
    class Transposed(Base):
        def forward(self, x): return self.m(paddle.tanh(paddle.tanh(self.l(x)) @ self.l.weight.t()))
    class Scalars(Base):
        def more(self): self.k = free(draw(8, 1)); self.g = free(draw(9, 4))
        def forward(self, x): return self.m(paddle.tanh(self.l(x) * self.k) * self.g)
    class Dropped(Base):
        def more(self): self.d = nn.Dropout(0.)
        def forward(self, x): return self.m(self.d(F.leaky_relu(self.l(x))))
    class Kinks(Base):
        def forward(self, x): h = self.l(x); return self.m(F.relu6(h) + F.elu(h) + F.hardtanh(h) + paddle.where(h > 0, h, h * .1) + h.clip(-.5, .5))
    class Conv(nn.Layer):
        def __init__(self): super().__init__(); self.c = nn.Conv1D(1, 3, 2); self.b = nn.BatchNorm1D(3); self.m = linear(3, 3, 5)
        def forward(self, x): return self.m(F.relu(self.b(self.c(x.unsqueeze(1)))).mean(-1))
    class Embedded(nn.Layer):
        ids = True
        def __init__(self): super().__init__(); self.e = nn.Embedding(7, 4); self.p = free(draw(8, 5, 4)); self.m = linear(4, 3, 5)
        def forward(self, i): return self.m(paddle.tanh(self.e(i) + self.p)).mean(1)
    class Attention(Base):
        def more(self): self.a = nn.MultiHeadAttention(4, 2)
        def forward(self, x): return self.m(self.a(self.l(x).unsqueeze(0))[0])

    for make in (Numbers, Buffers, Norm, Normalised, Stopped, Straight, Frozen, Tied, Transposed, Scalars, Dropped, Kinks, Conv, Embedded, Attention):
        name = f"paddle-{make.__name__.lower()}"; path = f"{folder}/{name}"
        if name in done: continue
        ids = hasattr(make, "ids"); x = IDS if ids else draw(1, 6, 4); target = draw(2, 6, 3)
        m = make(); m.train()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                paddle.onnx.export(m, path, [paddle.static.InputSpec(x.shape, "int64" if ids else "float32", "x")], opset_version=17, training=False)
        except Exception as e:
            yield name, "not exported", str(e)[:150]; continue
        path += ".onnx"; neutral_paths(path); m.train()
        v = [p for p in m.parameters() if not p.stop_gradient]; first, losses = [p.numpy().copy() for p in v], []
        o = paddle.optimizer.SGD(RATE, parameters=v)
        for _ in range(STEPS):
            loss = ((m(paddle.to_tensor(x)) - paddle.to_tensor(target)) ** 2).mean(); losses.append(float(loss))
            loss.backward(); o.step(); o.clear_grad()
        still = [word for p in m.parameters() if p.stop_gradient for word in ("--freeze", p.name)]
        yield Case(name, path, ["--loss", "mse", *still], {**first_input(path, [x]), "target": target}, losses,
                   *named_by_content(path, first, [p.numpy() for p in v]))
