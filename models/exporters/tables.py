# SPDX-License-Identifier: Apache-2.0
"""PyTorch models for exporters.py around one tensor each: functions of a parameter alone, which the default export folds;
parameters that equal constants, buffers or each other; tables, statistics and codebooks under the names that people give them;
functions of autograd, and values that are detached beside an equal one.  MODELS lists them with their data."""
import copy
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
T, P, R = torch.tensor, nn.Parameter, torch.randn
K = MODELS = []
def x4(r): return [torch.tensor(r.randn(6, 4), dtype=torch.float32)]
def image(r): return [torch.tensor(r.rand(4, 3, 6, 6), dtype=torch.float32)]
def seq(r): return [torch.tensor(r.randn(3, 5, 4), dtype=torch.float32)]
def ids(r): return [torch.tensor(r.randint(0, 7, (3, 5)))]
class Two(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.l = nn.Linear(4, 4); s.m = nn.Linear(4, 3); s.more()
    def more(s): pass
def k(data=x4):
    def d(c): K.append((c, data)); return c
    return d
def mk(name, more, fwd, data=x4):
    def forward(s, x): return fwd(s, x, torch.tanh(s.l(x)))
    K.append((type(name, (Two,), {"more": more, "forward": forward}), data))
def setp(**kw):
    """Parameters by name; buffers are called b_NAME."""
    def more(s):
        for n, v in kw.items():
            v = v() if callable(v) else v
            if n.startswith("b_"): s.register_buffer(n[2:], v.clone())
            else: setattr(s, n, P(v.clone()))
    return more
# --- functions of a parameter alone (default mode folds them) ---
W=lambda: R(4,4)*.5
V=lambda: R(4)*.5+1
for name,f in dict(
  PView=lambda s,x,h: s.m(h*s.v.view(1,4)), PUnsq=lambda s,x,h: s.m(h*s.v[None]), PSqueeze=lambda s,x,h: s.m(h*s.u.squeeze(0)),
  PExpand=lambda s,x,h: s.m(h*s.v.expand(6,4)), PExpandAs=lambda s,x,h: s.m(h*s.v.expand_as(h)), PRepeat=lambda s,x,h: s.m(h*s.v.repeat(6,1)), PTile=lambda s,x,h: s.m(h*s.v[:2].tile(2)),
  PPermute=lambda s,x,h: s.m(h@s.w.permute(1,0).contiguous()), PFlatten=lambda s,x,h: s.m(h*s.w.flatten()[:4]), PReshape=lambda s,x,h: s.m(h*s.w.reshape(2,8)[1,2:6]),
  PFlip=lambda s,x,h: s.m(h*s.v.flip(0)), PRoll=lambda s,x,h: s.m(h*s.v.roll(1)), PSelect=lambda s,x,h: s.m(h*s.w[1]), PColumn=lambda s,x,h: s.m(h*s.w[:,1]), PIndex=lambda s,x,h: s.m(h*s.v[[3,0,0,1]]),
  PIndexSel=lambda s,x,h: s.m(h@s.w.index_select(0,T([1,0,3,2]))), PSplit=lambda s,x,h: s.m(h*torch.cat(s.v.split(2)[::-1])), PChunk=lambda s,x,h: s.m(torch.tanh(h@s.w.chunk(2,1)[0])@s.w.chunk(2,0)[1]), PUnbind=lambda s,x,h: s.m(sum(h*r for r in s.w.unbind(0))),
  PDiag=lambda s,x,h: s.m(h*s.w.diagonal()), PDiagEmbed=lambda s,x,h: s.m(h@torch.diag_embed(s.v)), PDiagM=lambda s,x,h: s.m(h@torch.diag(s.v)), PTril=lambda s,x,h: s.m(h@torch.tril(s.w)), PTriu1=lambda s,x,h: s.m(h@(torch.triu(s.w,1)-torch.triu(s.w,1).T)),
  PGram=lambda s,x,h: s.m(h@(s.w.T@s.w)), PSoftmax=lambda s,x,h: s.m(h*s.v.softmax(0)), PSigmoid=lambda s,x,h: s.m(h*s.v.sigmoid()), PExp=lambda s,x,h: s.m(h*s.v.exp()), PSoftplus=lambda s,x,h: s.m(h*F.softplus(s.v)), PNormed=lambda s,x,h: s.m(h@F.normalize(s.w,dim=0)),
  PSum=lambda s,x,h: s.m(h*s.v.sum()), PMean=lambda s,x,h: s.m(h*(s.v-s.v.mean())), PCum=lambda s,x,h: s.m(h*s.v.cumsum(0)), PCat=lambda s,x,h: s.m(h@torch.cat([s.w[:2],s.w2[:2]])), PStack=lambda s,x,h: s.m(h@torch.stack([s.v,s.w[0],s.w[1],s.v*2])), PPad=lambda s,x,h: s.m(h*F.pad(s.v[:2],(1,1),value=1.)), PClamp=lambda s,x,h: s.m(h*s.v.clamp(0.2,1.2)),
  PAbs=lambda s,x,h: s.m(h*s.v.abs()), PNeg=lambda s,x,h: s.m(h*-s.v), PMul2=lambda s,x,h: s.m(h*(s.v*2)), PPlus1=lambda s,x,h: s.m(h*(1+s.v)), PDiv=lambda s,x,h: s.m(h*(s.v/3)), PSquare=lambda s,x,h: s.m(h*s.v.square()), PPow=lambda s,x,h: s.m(h*s.v.abs()**1.5), PRecip=lambda s,x,h: s.m(h/ (s.v.abs()+.5)), PDouble=lambda s,x,h: s.m(h*s.v.double().float()), PHalf=lambda s,x,h: s.m(h*s.v.half().float()),
  PWhere=lambda s,x,h: s.m(h*torch.where(T([True,False,True,True]),s.v,T(0.5))), PMask=lambda s,x,h: s.m(h@(s.w*T([[1.,0,1,1]]))), PTimesBuf=lambda s,x,h: s.m(h*(s.v*s.c)), PPlusBuf=lambda s,x,h: s.m(h@(s.w+s.d)), PCatBuf=lambda s,x,h: s.m(h@torch.cat([s.w[:2],s.d[:2]])), PSwap=lambda s,x,h: s.m(h@s.w.swapaxes(0,1)), PMove=lambda s,x,h: s.m(h@s.w.movedim(0,1)), PmT=lambda s,x,h: s.m(h@s.w.mT@s.w2.t()),
  PClone=lambda s,x,h: s.m(h@s.w.clone()), PContig=lambda s,x,h: s.m(h@s.w.contiguous()), PToF=lambda s,x,h: s.m(h@s.w.to(x.dtype)), PTypeAs=lambda s,x,h: s.m(h@s.w.type_as(x)), PDetachMix=lambda s,x,h: s.m(h@(s.w+s.w.detach())), PInner=lambda s,x,h: s.m(h*torch.dot(s.v,s.v)), POuter=lambda s,x,h: s.m(h@torch.outer(s.v,s.v)), PKron=lambda s,x,h: s.m(h@torch.kron(s.w[:2,:2],s.w2[:2,:2])), PEinsum=lambda s,x,h: s.m(h@torch.einsum('ij,jk->ik',s.w,s.w2)), PMax=lambda s,x,h: s.m(h*s.v.max()), PSort=lambda s,x,h: s.m(h*s.v.sort().values), PGatherRow=lambda s,x,h: s.m(h*s.w.gather(1,T([[0],[1],[2],[3]])).squeeze(1)), PScatter=lambda s,x,h: s.m(h*torch.zeros(4).scatter(0,T([3,1]),s.v[:2])), PMeshed=lambda s,x,h: s.m(h*(s.v[:,None]*s.v[None,:])[0]), PLinspace=lambda s,x,h: s.m(h*(s.v[0]+torch.arange(4.)*s.v[1])),
  PInterp=lambda s,x,h: s.m(h*F.interpolate(s.v[None,None],size=8,mode='linear')[0,0,::2]), PFold=lambda s,x,h: s.m(h*s.v.unfold(0,2,2).sum(1).repeat_interleave(2)), PLayerN=lambda s,x,h: s.m(h*F.layer_norm(s.v,(4,))), PLinOfP=lambda s,x,h: s.m(h*s.l(s.v)), PNormScalar=lambda s,x,h: s.m(h@(s.w/s.w.norm())), PLse=lambda s,x,h: s.m(h-s.v.logsumexp(0)),
).items(): mk(name, setp(w=W,w2=W,v=V,u=lambda: R(1,4)+1,b_c=V,b_d=W), f)
# --- parameters that equal constants, buffers or each other ---
mk('EqHalf',setp(alpha=T(.5),beta=T(.5)),lambda s,x,h: s.m(h*s.alpha+.5)+s.beta*.5)
mk('EqHalf1',setp(alpha=T([.5]),beta=T([.5])),lambda s,x,h: s.m(h*s.alpha+.5)+s.beta*.5)
mk('EqOne',setp(t=T(1.)),lambda s,x,h: s.m(h/s.t+1))
mk('EqOne1',setp(t=T([1.])),lambda s,x,h: s.m(h/s.t)*s.t)
mk('EqZero',setp(t=T(0.)),lambda s,x,h: s.m(h+s.t)-s.t)
mk('EqZero1',setp(t=T([0.])),lambda s,x,h: s.m(h-s.t))
mk('EqTwo',setp(t=T(2.)),lambda s,x,h: s.m(h.abs()**s.t+h**2))
mk('EqPow1',setp(t=T(1.)),lambda s,x,h: s.m((h.abs()+.1)**s.t))
mk('ReZero',setp(a=T(0.),b=T(0.)),lambda s,x,h: s.m(x+s.a*h)+s.b*x[:,:3])
mk('ReZero1',setp(a=T([0.]),b=T([0.])),lambda s,x,h: s.m(x+s.a*torch.tanh(s.l(h)))+s.b*x[:,:3])
mk('EqOnes4',setp(g=torch.ones(4),b=torch.zeros(4)),lambda s,x,h: s.m(h*s.g*torch.ones(4)+s.b+torch.zeros(4)))
mk('BufEqPar',setp(g=torch.ones(4),b_o=torch.ones(4),z=torch.zeros(4),b_q=torch.zeros(4)),lambda s,x,h: s.m(h*s.g+s.z)*1+s.m((h*x+.1)*s.o+s.q))
class DeepT(Two):
    def more(s): s.t=copy.deepcopy(s.l)
    def forward(s,x): return s.m(torch.tanh(s.l(x))+torch.tanh(s.t(x)).detach())
K.append((DeepT, x4))
class DeepFrozen(Two):
    options=["--freeze","t.*"]
    def more(s): s.t=copy.deepcopy(s.l).requires_grad_(False)
    def forward(s,x): return s.m(torch.tanh(s.l(x))+torch.tanh(s.t(x*.5)))
K.append((DeepFrozen, x4))
class DeepEmb(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.a=nn.Embedding(7,4); s.b=copy.deepcopy(s.a); s.m=nn.Linear(4,2)
    def forward(s,i): return s.m(torch.tanh(s.a(i)+s.b((i+1)%7)*.5)).mean(1)
K.append((DeepEmb, ids))
class DeepConv(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.a=nn.Conv2d(3,3,3,padding=1); s.b=copy.deepcopy(s.a); s.t=nn.ConvTranspose2d(3,3,3,padding=1); s.u=copy.deepcopy(s.t); s.m=nn.Linear(3,2)
    def forward(s,x): return s.m(s.u(torch.tanh(s.t(torch.tanh(s.b(torch.tanh(s.a(x))))))).mean((2,3)))
K.append((DeepConv, image))
class DeepGru(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.a=nn.GRU(4,4,batch_first=True); s.b=copy.deepcopy(s.a); s.m=nn.Linear(4,2)
    def forward(s,x): return s.m(s.b(s.a(x)[0])[0].mean(1))
K.append((DeepGru, seq))
class DeepLstmCells(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.a=nn.LSTMCell(4,4); s.b=copy.deepcopy(s.a); s.m=nn.Linear(4,2)
    def forward(s,x):
        z=torch.zeros(3,4); h,c=s.a(x[:,0],(z,z)); h,c=s.b(h,(h,c)); return s.m(c)
K.append((DeepLstmCells, seq))
class Ensemble(Two):
    def more(s): s.w=P(R(1,4,4).repeat(3,1,1)); s.b=P(torch.zeros(3,1,4))
    def forward(s,x): return s.m(torch.baddbmm(s.b,x.expand(3,6,4),s.w).tanh().mean(0))
K.append((Ensemble, x4))
class PreluEq(Two):
    def more(s): s.a=nn.PReLU(); s.b=nn.PReLU(); s.c=nn.PReLU(4)
    def forward(s,x): return s.m(s.c(s.b(s.a(s.l(x))-.1)+.05))
K.append((PreluEq, x4))
class LayerScales(Two):
    def more(s): s.g1=P(torch.full((4,),1e-2)); s.g2=P(torch.full((4,),1e-2)); s.n1=nn.LayerNorm(4); s.n2=nn.LayerNorm(4)
    def forward(s,x):
        x=x+s.g1*s.l(s.n1(x)); x=x+s.g2*torch.tanh(s.l(s.n2(x))); return s.m(x)
K.append((LayerScales, x4))
class LayerScaleConv(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.d=nn.Conv2d(4,4,1); s.g=P(torch.full((4,),.1)); s.h=P(torch.full((4,1,1),.1)); s.m=nn.Linear(4,2)
    def forward(s,x): x=torch.tanh(s.c(x)); x=x+s.g[:,None,None]*s.d(x); x=x+s.h*torch.tanh(s.d(x)); return s.m(x.mean((2,3)))
K.append((LayerScaleConv, image))
# --- buffers by strange names and places ---
mk('Sac',setp(b_action_scale=V,b_action_bias=V),lambda s,x,h: s.m(torch.tanh(h*s.action_scale+s.action_bias)))
mk('SacOut',setp(b_action_scale=lambda: R(3)+2,b_action_bias=lambda: R(3)),lambda s,x,h: torch.tanh(s.m(h))*s.action_scale+s.action_bias)
mk('Denorm',setp(b_y_mean=lambda: R(3),b_y_std=lambda: R(3).abs()+1),lambda s,x,h: s.m(h)*s.y_std+s.y_mean)
mk('MinMax',setp(b_low=lambda: R(4)-2,b_high=lambda: R(4)+2),lambda s,x,h: s.m(torch.tanh(s.l((x-s.low)/(s.high-s.low)))))
mk('Whiten',setp(b_mu=V,b_zca=W),lambda s,x,h: s.m(torch.tanh(s.l((x-s.mu)@s.zca))))
mk('LogStd',setp(log_std=lambda: R(3)*.1),lambda s,x,h: s.m(h)/s.log_std.exp()-s.log_std)
mk('Offsets',setp(b_offset=V,scale=V,shift=V,b_factor=V),lambda s,x,h: s.m(torch.tanh((h+s.offset)*s.scale+s.shift)*s.factor))
mk('MelBank',setp(b_fb=lambda: R(4,4).abs(),b_window=lambda: torch.hann_window(4)),lambda s,x,h: s.m(torch.tanh(s.l(((x*s.window).square()@s.fb+1e-3).log()))))
mk('Adjacency',setp(b_adj=lambda: torch.softmax(R(6,6),1)),lambda s,x,h: s.m(s.adj@torch.tanh(s.l(s.adj@x))))
mk('Projector',setp(b_rotation=lambda: torch.linalg.qr(R(4,4))[0],b_lookup=lambda: R(5,4)),lambda s,x,h: s.m(torch.tanh(h@s.rotation@s.rotation.T+s.lookup[2])))
mk('Prototypes',setp(b_prototypes=lambda: R(3,4),tau=T(.7)),lambda s,x,h: s.m(h)-torch.cdist(h,s.prototypes).square()/s.tau if False else s.m(h)-((h[:,None]-s.prototypes)**2).sum(-1)/s.tau)
mk('Weighted',setp(b_loss_weight=lambda: T([1.,2.,.5])),lambda s,x,h: s.m(h)*s.loss_weight)
class SubBuf(nn.Module):
    def __init__(s,n): super().__init__(); s.register_buffer('weight',R(n)+1); s.register_buffer('bias',R(n))
    def forward(s,x): return x*s.weight+s.bias
class FrozenAffine(Two):
    def more(s): s.fa=SubBuf(4); s.fb=SubBuf(3)
    def forward(s,x): return s.fb(s.m(torch.tanh(s.fa(s.l(x)))))
K.append((FrozenAffine, x4))
class BufConv(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.register_buffer('blur',T([[1.,2,1],[2,4,2],[1,2,1]])/16); s.m=nn.Linear(4,2)
    def forward(s,x): return s.m(F.conv2d(F.pad(torch.tanh(s.c(x)),(1,1,1,1),mode='reflect'),s.blur[None,None].expand(4,1,3,3),groups=4,stride=2).mean((2,3)))
K.append((BufConv, image))
class PerChannel(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.register_buffer('mean',torch.rand(3)); s.register_buffer('std',torch.rand(3)+.5); s.m=nn.Linear(4,2)
    def forward(s,x): x=(x-s.mean.view(1,-1,1,1))/s.std.view(1,-1,1,1); return s.m(torch.tanh(s.c(x)).mean((2,3)))
K.append((PerChannel, image))
class PerChannelMul(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.register_buffer('a',1/(torch.rand(3,1,1)+.5)); s.register_buffer('o',torch.rand(3,1,1)); s.m=nn.Linear(4,2)
    def forward(s,x): return s.m(torch.tanh(s.c(x*s.a-s.o)).mean((2,3)))
K.append((PerChannelMul, image))
class Lpips(nn.Module):
    """ScalingLayer of LPIPS, with a fixed head."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.register_buffer('shift',T([-.03,-.088,-.188])[None,:,None,None]); s.register_buffer('scale',T([.458,.448,.45])[None,:,None,None]); s.lin=nn.Conv2d(4,1,1,bias=False)
    def forward(s,x): h=s.c((x-s.shift)/s.scale); h=h/(h.square().sum(1,keepdim=True)+1e-10).sqrt(); return s.lin(h.square()).mean((2,3))
K.append((Lpips, image))
class YoloGrid(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,8,1); s.register_buffer('anchor_grid',torch.rand(1,2,1,1,2)+.5); g=torch.stack(torch.meshgrid(torch.arange(6.),torch.arange(6.),indexing='ij'),-1)[None,None]; s.register_buffer('cells',g)
    def forward(s,x): p=s.c(x).view(4,2,4,6,6).permute(0,1,3,4,2).sigmoid(); xy=(p[...,:2]*2-.5+s.cells)/6; wh=(p[...,2:]*2)**2*s.anchor_grid; return torch.cat([xy,wh],-1).flatten(1)
K.append((YoloGrid, image))
class Dfl(nn.Module):
    """YOLOv8: expectation over bins by a convolution that does not train."""
    options=["--freeze","dfl.weight"]
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,8,1); s.dfl=nn.Conv2d(4,1,1,bias=False).requires_grad_(False); s.dfl.weight.data[:]=torch.arange(4.).view(1,4,1,1)
    def forward(s,x): p=s.c(x).flatten(2); return s.dfl(p.view(4,2,4,36).transpose(2,1).softmax(1)).view(4,2,36).mean(2)
K.append((Dfl, image))
class SinusLearn(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.l=nn.Linear(4,4); s.m=nn.Linear(4,2); p=torch.arange(5)[:,None]/10000**(torch.arange(0,4,2)/4); s.pos_embed=P(torch.stack([p.sin(),p.cos()],-1).reshape(5,4))
    def forward(s,x): return s.m(torch.tanh(s.l(x)+s.pos_embed)).mean(1)
K.append((SinusLearn, seq))
class TokenTypes(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.w=nn.Embedding(7,4); s.t=nn.Embedding(2,4); s.register_buffer('token_type_ids',torch.zeros(1,5,dtype=torch.long)); s.register_buffer('position_ids',torch.arange(5)[None]); s.p=nn.Embedding(5,4); s.n=nn.LayerNorm(4); s.m=nn.Linear(4,2)
    def forward(s,i): return s.m(s.n(s.w(i)+s.t(s.token_type_ids)+s.p(s.position_ids))).mean(1)
K.append((TokenTypes, ids))
class EmbWeight(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.w=nn.Embedding(7,4); s.p=nn.Embedding(5,4); s.m=nn.Linear(4,7,bias=False); s.m.weight=s.w.weight
    def forward(s,i): return s.m(torch.tanh(s.w(i)*2+s.p.weight[None]))
K.append((EmbWeight, ids))
class RelTable(nn.Module):
    """Swin: a table of biases, read by a buffer of indices."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.q=nn.Linear(4,12); s.relative_position_bias_table=P(R(9,2)); i=torch.arange(5); s.register_buffer('relative_position_index',i[:,None]-i+4); s.o=nn.Linear(4,2)
    def forward(s,x):
        q,k_,v=s.q(x).view(3,5,3,2,2).permute(2,0,3,1,4).unbind(0); b=s.relative_position_bias_table[s.relative_position_index.view(-1)].view(5,5,-1).permute(2,0,1).contiguous()
        return s.o(((q@k_.mT*.7+b[None]).softmax(-1)@v).transpose(1,2).reshape(3,5,4)).mean(1)
K.append((RelTable, seq))
class SwinV2(nn.Module):
    """Log-spaced coordinates (a buffer) through an MLP; a learned logit scale that is clamped."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.q=nn.Linear(4,12); s.logit_scale=P(torch.log(10*torch.ones(2,1,1))); s.cpb=nn.Sequential(nn.Linear(1,4),nn.ReLU(),nn.Linear(4,2,bias=False)); i=torch.arange(-4,5.)[:,None]; s.register_buffer('relative_coords_table',torch.sign(i)*torch.log2(i.abs()+1)/3,persistent=False); j=torch.arange(5); s.register_buffer('idx',(j[:,None]-j+4).view(-1),persistent=False); s.o=nn.Linear(4,2)
    def forward(s,x):
        q,k_,v=s.q(x).view(3,5,3,2,2).permute(2,0,3,1,4).unbind(0); a=F.normalize(q,dim=-1)@F.normalize(k_,dim=-1).mT*s.logit_scale.clamp(max=float(np.log(100))).exp()
        b=16*torch.sigmoid(s.cpb(s.relative_coords_table)[s.idx].view(5,5,2).permute(2,0,1)); return s.o(((a+b).softmax(-1)@v).transpose(1,2).reshape(3,5,4)).mean(1)
K.append((SwinV2, seq))
class Beit(nn.Module):
    """qkv without a bias of k: the bias is put together from two parameters and a buffer of zeros."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.w=P(R(12,4)*.5); s.q_bias=P(R(4)); s.v_bias=P(R(4)); s.register_buffer('k_bias',torch.zeros(4),persistent=False); s.o=nn.Linear(4,2)
    def forward(s,x):
        q,k_,v=F.linear(x,s.w,torch.cat((s.q_bias,s.k_bias,s.v_bias))).chunk(3,-1); return s.o((q@k_.mT/2).softmax(-1)@v).mean(1)
K.append((Beit, seq))
class Elmo(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.l=nn.Linear(4,4); s.m=nn.Linear(4,2); s.scalars=nn.ParameterList([P(T([0.])) for _ in range(3)]); s.gamma=P(T([1.]))
    def forward(s,x):
        h=[x]; 
        for _ in range(2): h.append(torch.tanh(s.l(h[-1])))
        w=torch.cat([p for p in s.scalars]).softmax(0).split(1); return s.m(s.gamma*sum(a*b for a,b in zip(w,h))).mean(1)
K.append((Elmo, seq))
class TaskWeights(Two):
    own_loss=True
    def more(s): s.log_vars=P(torch.zeros(2)); s.register_buffer('target',R(6,3))
    def forward(s,x): h=s.l(x); a=(s.m(h)-s.target).square().mean(); b=(h-x).abs().mean(); return ((-s.log_vars).exp()*torch.stack([a,b])+s.log_vars).sum()
K.append((TaskWeights, x4))
class FocalAlpha(Two):
    own_loss=True
    def more(s): s.register_buffer('alpha',T([.25,.5,1.]))
    def forward(s,x): t=(x[:,0]>0).long()+(x[:,1]>0).long(); lp=s.m(torch.tanh(s.l(x))).log_softmax(1).gather(1,t[:,None])[:,0]; return (-s.alpha[t]*(1-lp.exp())**2*lp).mean()
K.append((FocalAlpha, x4))
class CentreLoss(Two):
    own_loss=True
    def more(s): s.centers=P(R(3,4))
    def forward(s,x): t=(x[:,0]>0).long()+(x[:,1]>0).long(); h=s.l(x); return F.cross_entropy(s.m(h),t)+.1*(h-s.centers[t]).square().sum(1).clamp(1e-12,1e12).mean()
K.append((CentreLoss, x4))
class ArcFace(Two):
    own_loss=True
    def more(s): s.kernel=P(R(4,3)); s.s=8.; s.mm=.3
    def forward(s,x): t=(x[:,0]>0).long()+(x[:,1]>0).long(); c=(F.normalize(s.l(x))@F.normalize(s.kernel,dim=0)).clamp(-1+1e-6,1-1e-6); o=F.one_hot(t,3); return F.cross_entropy(torch.cos(c.acos()+s.mm*o)*s.s,t)
K.append((ArcFace, x4))
class EmaHead(Two):
    def more(s): s.ema=copy.deepcopy(s.m).requires_grad_(False)
    options=["--freeze","ema.*"]; own_loss=True
    def forward(s,x): h=torch.tanh(s.l(x)); return F.mse_loss(s.m(h),s.ema(h*.9+.1).detach())
K.append((EmaHead, x4))
class AnnealedGain(Two):
    def more(s): s.register_buffer('steps',torch.zeros(()))
    def forward(s,x):
        if s.training: s.steps+=1
        return s.m(torch.tanh(s.l(x))*(s.steps/10).clamp(max=1))
K.append((AnnealedGain, x4))
class RunMeanStd(Two):
    def more(s): s.register_buffer('mean',torch.zeros(4)); s.register_buffer('var',torch.ones(4)); s.register_buffer('count',T(1e-4))
    def forward(s,x):
        if s.training:
            with torch.no_grad():
                n=s.count+6; d=x.mean(0)-s.mean; s.var.copy_((s.var*s.count+x.var(0,unbiased=False)*6+d.square()*s.count*6/n)/n); s.mean.add_(d*6/n); s.count.copy_(n)
        return s.m(torch.tanh(s.l(((x-s.mean)/(s.var+1e-8).sqrt()).clamp(-5,5))))
K.append((RunMeanStd, x4))
class PopArt(Two):
    def more(s): s.register_buffer('sigma',T(2.)); s.register_buffer('mu',T(.5))
    def forward(s,x): return s.m(torch.tanh(s.l(x)))*s.sigma+s.mu
K.append((PopArt, x4))
class VqEma(Two):
    def more(s): s.register_buffer('codebook',R(5,4)); s.register_buffer('embed_avg',R(5,4)); s.register_buffer('cluster_size',torch.ones(5))
    def forward(s,x):
        h=s.l(x); i=torch.cdist(h,s.codebook).argmin(1) if False else ((h[:,None]-s.codebook)**2).sum(-1).argmin(1); q=s.codebook[i]
        if s.training:
            with torch.no_grad():
                o=F.one_hot(i,5).float(); s.cluster_size.mul_(.9).add_(o.sum(0),alpha=.1); s.embed_avg.mul_(.9).add_(o.t()@h,alpha=.1); s.codebook.copy_(s.embed_avg/s.cluster_size[:,None])
        return s.m(h+(q-h).detach())
K.append((VqEma, x4))
class Fsq(Two):
    def more(s): s.register_buffer('levels',T([3,5,3,5],dtype=torch.int32),persistent=False)
    def forward(s,x):
        h=s.l(x); half=(s.levels-1)*(1+1e-3)/2; z=h.tanh()*half; q=z+(z.round()-z).detach(); return s.m(q/(s.levels//2))
K.append((Fsq, x4))
class Bits(Two):
    def more(s): s.register_buffer('scale',T(.1)); s.register_buffer('zero',T(0.))
    def forward(s,x): w=s.l.weight; q=((w/s.scale+s.zero).round().clamp(-8,7)-s.zero)*s.scale; return s.m(torch.tanh(F.linear(x,w+(q-w).detach(),s.l.bias)))
K.append((Bits, x4))
class BitNet(Two):
    def forward(s,x):
        w=s.l.weight; sc=w.abs().mean().clamp(min=1e-5); q=(w/sc).round().clamp(-1,1)*sc; a=127/x.abs().max(-1,keepdim=True).values.clamp(min=1e-5); xq=(x*a).round().clamp(-128,127)/a
        return s.m(torch.tanh(F.linear(x+(xq-x).detach(),w+(q-w).detach())))
K.append((BitNet, x4))
# --- functions of autograd, merged stops ---
class Rev(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        return -ctx.alpha * g, None
class RevClone(Rev):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.clone()
class RevSame(Rev):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x * 1.0
def grad_reverse(x, alpha=1.0):
    return Rev.apply(x, alpha)
class GradRev(nn.Module):
    def forward(self, x):
        return RevClone.apply(x, .5)
@k()
class Dann(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        z = grad_reverse(h)
        return self.m(z)
@k()
class DannLine(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        z = Rev.apply(h, 1.0)
        return self.m(z)
@k()
class DannMod(Two):
    def more(s): s.g = GradRev()
    def forward(self, x):
        h = torch.tanh(self.l(x))
        h = self.g(h)
        return self.m(h)
@k()
class DannCall(Two):
    def forward(self, x):
        return self.m(RevSame.apply(torch.tanh(self.l(x)), 1.0))
@k()
class SuperForward(Two):
    def more(s):
        class Lin(nn.Linear):
            def forward(s, x): return super().forward(x) * 2
        s.l = Lin(4, 4)
    def forward(self, x): return self.m(torch.tanh(self.l(x)))
@k()
class CallOfDetached(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        return self.m(torch.sigmoid(h) * torch.sigmoid(h.detach()))
@k()
class LineOfDetached(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        a = torch.sigmoid(h)
        b = torch.sigmoid(h.detach())
        return self.m(a * b)
@k()
class OfDetachedName(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        d = h.detach()
        return self.m(torch.sigmoid(h) * torch.sigmoid(d))
@k()
class LayerOfDetached(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        return self.m(h) * self.m(h.detach()).softmax(-1)
@k()
class BesideNoGrad(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        with torch.no_grad():
            a = torch.sigmoid(h)
        return self.m(torch.sigmoid(h) * a)
@k()
class QuotientOfDetached(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        return self.m(h.sigmoid() / h.detach().sigmoid().clamp(min=.1))
@k()
class SoftmaxOfDetached(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        p = h.softmax(-1)
        return self.m(p * h.detach().softmax(-1).log())
@k()
class DetachedFirst(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        w = (h.detach() * 2).sigmoid()
        return self.m((h * 2).sigmoid() * w)
@k()
class SumOfDetached(Two):
    def forward(self, x):
        h = self.l(x)
        return self.m(h.exp() / h.detach().exp().sum(-1, keepdim=True) - h.exp() * .1)
@k()
class ChainOfDetached(Two):
    def forward(self, x):
        h = self.l(x)
        return self.m((h * 2 + 1).tanh() - (h.detach() * 2 + 1).tanh() + h)
@k()
class DistilledSelf(Two):
    own_loss=True
    def forward(self, x):
        p = self.m(torch.tanh(self.l(x)))
        return F.kl_div(p.log_softmax(-1), p.detach().softmax(-1), reduction='batchmean') + (p.log_softmax(-1)*p.log_softmax(-1).detach()).mean()
@k()
class CopiedDetached(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        t = torch.zeros(6, 4)
        t[:] = h.detach()
        return self.m(h * t)
@k()
class CopiedIn(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        t = torch.empty_like(h)
        t.copy_(h)
        return self.m(h * t)
@k()
class DetachedBias(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        return self.m(torch.tanh(F.linear(x, self.l.weight, self.l.bias.detach()) + h))
@k()
class DetachInPlace(Two):
    def forward(self, x):
        h = torch.tanh(self.l(x))
        return self.m(h * torch.tanh(self.l(x)).detach_())
@k()
class Actor(Two):
    own_loss=True
    def more(s): s.v = nn.Linear(4,1); s.register_buffer('ret', R(6,1))
    def forward(self, x):
        h = torch.tanh(self.l(x))
        v = self.v(h)
        adv = self.ret - v.detach()
        return -(self.m(h).log_softmax(-1)[:, :1] * adv).mean() + (self.ret - v).square().mean()
@k()
class SimSiam(Two):
    own_loss=True
    def more(s): s.p = nn.Linear(3,3)
    def forward(self, x):
        z1 = self.m(torch.tanh(self.l(x))); z2 = self.m(torch.tanh(self.l(x.flip(1))))
        p1, p2 = self.p(z1), self.p(z2)
        return -(F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean()) / 2
@k()
class Dino(Two):
    own_loss=True
    def more(s): s.register_buffer('center', R(1,3)); s.t=copy.deepcopy(s.m).requires_grad_(False)
    options=["--freeze","t.*"]
    def forward(self, x):
        h = torch.tanh(self.l(x))
        t = ((self.t(h.flip(1)) - self.center) / .04).softmax(-1).detach()
        return -(t * (self.m(h) / .1).log_softmax(-1)).sum(-1).mean()
@k()
class ScaleInv(Two):
    def forward(self, x):
        h = self.l(x)
        return self.m(h / h.detach().norm(dim=-1, keepdim=True))
