# SPDX-License-Identifier: Apache-2.0
# A transformer in the language, trained on a text, and a text out of it.
data.py text book.txt 700
cat > gpt.amp <<'A'
dim B = 4, T = 16, D = 16

def block(x; heads: int) -> y {
  x = x + Attention(LayerNorm(x, scope="norm1"), heads=heads, causal=true, scope="attn")
  y = x + Linear(gelu(Linear(LayerNorm(x, scope="norm2"), units=4 * dim(x, -1), scope="fc1")),
                 units=dim(x, -1), scope="fc2")
}

model gpt(tokens: i64[B,T]) {
  param places: f32[T,D] = normal(0.02)
  x = Embedding(tokens, size=256, width=D, std=0.02, scope="table") + places
  x = block(x, heads=2, scope="h.0")
  return logits = Linear(LayerNorm(x, scope="norm"), units=256, scope="head")
}

train gpt { loss = cross_entropy; optimizer = adamw, lr=2e-3 }
A
ampc check gpt.amp
ampc gpt.amp -o gpt.so
ampc run gpt.so --feed tokens=book.txt --feed target=book.txt --steps 1 >said 2>&1
grep "target: the same tokens as tokens; FILE:+1 feeds the next token of each" said
ampc run gpt.so --feed tokens=book.txt --feed target=book.txt:+1 --epochs 1 --shuffle \
    --save gpt.safetensors --log /dev/null
ampc run gpt.so --load gpt.safetensors --generate "the model " \
    --sample tokens=8,temperature=0
# other tokens than bytes
printf '%s\n' the model reads bytes and says which byte comes next ' ' \
    a b c d e h i l m n o r s t w x y > words
ampc run gpt.so --vocabulary words --feed tokens=book.txt --feed target=book.txt:+1 \
    --epochs 1 --log /dev/null 2>&1 | tee said
