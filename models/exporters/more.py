# SPDX-License-Identifier: Apache-2.0
"""More models for exporters.py, of kinds that users export: lists and dicts of parameters,
functional calls, masks, adapters, parametrizations, averages, branches, loops, resizing, gathers,
odd normalisations, recurrent cells."""
import torch, torch.nn as nn, torch.nn.functional as F
T = torch.tensor


class Two(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.l=nn.Linear(4,4); s.m=nn.Linear(4,3); s.more()
    def more(s): pass


MODELS = []
def x4(r): return [torch.tensor(r.randn(6,4),dtype=torch.float32)]
def image(r): return [torch.tensor(r.rand(4,3,6,6),dtype=torch.float32)]
def seq(r): return [torch.tensor(r.randn(3,5,4),dtype=torch.float32)]
def ids(r): return [torch.tensor(r.randint(0,7,(3,5)))]
def sig(r): return [torch.tensor(r.randn(2,3,12),dtype=torch.float32)]
def k(data=x4):
    def d(c): MODELS.append((c, data)); return c
    return d
@k()
class PList(Two):
    def more(s): s.ps=nn.ParameterList([nn.Parameter(torch.randn(4)*.3) for _ in range(3)]); s.pd=nn.ParameterDict({'a':nn.Parameter(torch.randn(4,4)*.3)})
    def forward(s,x):
        h=s.l(x)
        for p in s.ps: h=torch.tanh(h@s.pd['a']+p)
        return s.m(h)
@k()
class BufferParam(Two):  # a buffer used where a parameter is
    def more(s): s.register_buffer('weight', torch.randn(4,4)); s.register_buffer('bias', torch.randn(4))
    def forward(s,x): return s.m(torch.tanh(F.linear(s.l(x),s.weight,s.bias)))

@k()
class FuncCallTied(Two):
    def forward(s,x):
        return s.m(torch.tanh(torch.func.functional_call(s.l,{'weight':s.l.weight.t(),'bias':s.l.bias},(torch.tanh(s.l(x)),))))
@k(seq)
class MaskedFill(Two):
    def forward(s,x):
        h=s.l(x); a=h@h.transpose(1,2)
        m=torch.ones(5,5).triu(1).bool()
        a=a.masked_fill(m,float('-inf')).softmax(-1)
        return s.m(a@h).mean(1)
@k(seq)
class MaskedFillMin(Two):
    def forward(s,x):
        h=s.l(x); a=h@h.transpose(1,2)
        m=(x[...,0]>0.3)[:,None,:]
        a=a.masked_fill(m,torch.finfo(a.dtype).min).softmax(-1)
        return s.m(a@h).mean(1)
@k(seq)
class MaskedAverage(Two):
    def forward(s,x):
        m=(x[...,:1]>-0.5).float(); h=torch.tanh(s.l(x))*m
        return s.m(h.sum(1)/m.sum(1).clamp(min=1))
@k(seq)
class Einsums(Two):
    def more(s): s.w=nn.Parameter(torch.randn(2,4,4)*.3); s.u=nn.Parameter(torch.randn(2,4)*.3)
    def forward(s,x):
        h=torch.einsum('btd,hde->bhte',s.l(x),s.w)+s.u[None,:,None]
        g=torch.einsum('bhte,bhse->bhts',h,h).softmax(-1)
        return s.m(torch.einsum('bhts,bhse->bte',g,h)).mean(1)
@k()
class EinsumDiag(Two):
    def more(s): s.w=nn.Parameter(torch.randn(4,4))
    def forward(s,x): return s.m(torch.tanh(s.l(x)*torch.einsum('ii->i',s.w)+torch.einsum('ij->j',s.w)))
class LoraLinear(nn.Module):
    def __init__(s,base,r=2):
        super().__init__(); s.base=base
        for p in base.parameters(): p.requires_grad_(False)
        s.A=nn.Parameter(torch.randn(r,base.in_features)*.3); s.B=nn.Parameter(torch.randn(base.out_features,r)*.1); s.scale=2.0
    def forward(s,x): return s.base(x)+(x@s.A.t()@s.B.t())*s.scale
@k()
class LoraMod(Two):
    options=["--freeze","l.base.*"]
    def more(s): s.l=LoraLinear(s.l)
    def forward(s,x): return s.m(torch.tanh(s.l(x)))
class DoraLinear(nn.Module):
    def __init__(s,base,r=2):
        super().__init__(); s.base=base
        for p in base.parameters(): p.requires_grad_(False)
        s.A=nn.Parameter(torch.randn(r,4)*.3); s.B=nn.Parameter(torch.randn(4,r)*.1); s.mag=nn.Parameter(base.weight.norm(dim=1).clone())
    def forward(s,x):
        w=s.base.weight+s.B@s.A
        n=w.norm(dim=1).detach()
        return F.linear(x,w*(s.mag/n)[:,None],s.base.bias)
@k()
class Dora(Two):
    options=["--freeze","l.base.*"]
    def more(s): s.l=DoraLinear(s.l)
    def forward(s,x): return s.m(torch.tanh(s.l(x)))
@k()
class SpectralNew(Two):
    def more(s): s.l=torch.nn.utils.parametrizations.spectral_norm(s.l,n_power_iterations=1)
    def forward(s,x): return s.m(torch.tanh(s.l(x)))
@k(image)
class SpectralConv(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.utils.spectral_norm(nn.Conv2d(3,4,3)); s.l=nn.Linear(4,2)
    def forward(s,x): return s.l(torch.tanh(s.c(x)).mean((2,3)))
@k()
class WNorm(Two):
    def more(s): s.l=nn.utils.parametrizations.weight_norm(s.l,dim=1); s.m=nn.utils.weight_norm(s.m)
    def forward(s,x): return s.m(torch.tanh(s.l(x)))

class Skew(nn.Module):
    def forward(s,w): a=w.triu(1); return a-a.t()
class MatExp(nn.Module):
    def forward(s,w): i=torch.eye(4); return i+w+w@w/2+w@w@w/6
@k()
class ParamChain(Two):
    def more(s):
        nn.utils.parametrize.register_parametrization(s.l,'weight',Skew()); nn.utils.parametrize.register_parametrization(s.l,'weight',MatExp())
    def forward(s,x): return s.m(torch.tanh(s.l(x)))
@k()
class ParamCached(Two):
    def more(s): nn.utils.parametrize.register_parametrization(s.l,'weight',Skew())
    def forward(s,x):
        with nn.utils.parametrize.cached(): return s.m(torch.tanh(s.l(torch.tanh(s.l(x)))))
@k()
class EmaBuffer(Two):
    own_loss=True
    def more(s): s.register_buffer('center',torch.zeros(3))
    def forward(s,x):
        y=s.m(torch.tanh(s.l(x)))
        loss=((y-s.center-1)**2).mean()
        if s.training:
            with torch.no_grad(): s.center.mul_(.9).add_(y.mean(0),alpha=.1)
        return loss
@k()
class EmaCopy(Two):
    own_loss=True
    def more(s): s.register_buffer('avg',torch.zeros(4)); s.register_buffer('sq',torch.ones(4))
    def forward(s,x):
        h=s.l(x)
        if s.training:
            s.avg.copy_(s.avg*.9+h.detach().mean(0)*.1); s.sq.lerp_(h.detach().square().mean(0),.1)
        return s.m((h-s.avg)/(s.sq+1e-3).sqrt()).square().mean()
@k()
class WhereBranch(Two):
    def forward(s,x): h=s.l(x); return s.m(torch.where(h>0,torch.log1p(h.abs()),torch.sqrt(h.abs()+1e-3)*-.5)+torch.where(x>0,s.l.bias,torch.zeros(())))
@k()
class WhereNan(Two):
    def forward(s,x): h=s.l(x); return s.m(torch.where(h>0,h.clamp(min=1e-6).log(),h))
@k()
class WhereScalar(Two):
    def more(s): s.fill=nn.Parameter(torch.tensor(.3))
    def forward(s,x): h=s.l(x); return s.m(torch.where(x>0.2,h,s.fill)+torch.where(x<0,1.0,0.5)*h)
class SiluFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): ctx.save_for_backward(x); return x*torch.sigmoid(x)
    @staticmethod
    def backward(ctx,g): x,=ctx.saved_tensors; s=torch.sigmoid(x); return g*s*(1+x*(1-s))
@k()
class CustomFn(Two):
    def forward(s,x): return s.m(SiluFn.apply(s.l(x)))
class ClipFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x.clamp(-.5,.5)
    @staticmethod
    def backward(ctx,g): return g
@k()
class CustomClip(Two):
    def forward(s,x): return s.m(ClipFn.apply(s.l(x)))
@k(seq)
class ScanRnn(Two):
    def forward(s,x):
        h=torch.zeros(x.shape[0],4)
        for t in range(x.shape[1]): h=torch.tanh(s.l(x[:,t])+h*.5)
        return s.m(h)
@k(seq)
class Scan(Two):
    def forward(s,x):
        from torch._higher_order_ops.scan import scan
        def f(c,xt): n=torch.tanh(s.l(xt)+c*.5); return n,n.clone()
        c,ys=scan(f,torch.zeros(3,4),x.transpose(0,1),dim=0)
        return s.m(ys.mean(0))
    def unrolled(s,x):
        """What trains the model in PyTorch, whose loops lose the gradient of what they carry."""
        c=torch.zeros(3,4); ys=[]
        for t in range(5): c=torch.tanh(s.l(x[:,t])+c*.5); ys.append(c)
        return s.m(torch.stack(ys).mean(0))
@k()
class While(Two):
    def forward(s,x):
        from torch._higher_order_ops.while_loop import while_loop
        i,h=while_loop(lambda i,h:i<3,lambda i,h:(i+1,torch.tanh(s.l(h))),(torch.tensor(0),x))
        return s.m(h)
    def unrolled(s,x):
        for _ in range(3): x=torch.tanh(s.l(x))
        return s.m(x)

@k()
class SortTop(Two):
    def forward(s,x): h=s.l(x); return s.m(h.sort(-1,descending=True).values+h.topk(2,-1).values.sum(-1,keepdim=True))
@k()
class KthCum(Two):
    def forward(s,x): h=s.l(x); return s.m(h.cumsum(-1)*.3+h.logcumsumexp(-1)*.2+h.logsumexp(-1,keepdim=True))
@k(image)
class Up(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.d=nn.Conv2d(4,2,3)
    def forward(s,x):
        h=torch.tanh(s.c(x)); a=F.interpolate(h,scale_factor=2,mode='bilinear',align_corners=False)
        b=F.interpolate(h,size=(8,8),mode='nearest'); c=F.interpolate(h,size=(8,8),mode='bicubic',align_corners=True)
        return s.d(a+b*.5+c*.25)
@k(image)
class Down(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3,padding=1); s.d=nn.Conv2d(4,2,1)
    def forward(s,x):
        h=torch.tanh(s.c(x)); return s.d(F.interpolate(h,size=(3,3),mode='area')+F.interpolate(h,scale_factor=.5,mode='bilinear',antialias=True)+F.interpolate(h,scale_factor=.5,mode='nearest-exact')+F.interpolate(h,size=(3,3),mode='bilinear',align_corners=True))
@k(image)
class UpFrac(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.d=nn.Conv2d(4,2,1)
    def forward(s,x): h=torch.tanh(s.c(x)); return s.d(F.interpolate(h,scale_factor=1.6,mode='bilinear',recompute_scale_factor=False)+F.interpolate(h,scale_factor=1.6,mode='nearest',recompute_scale_factor=True)).mean((2,3))
@k(image)
class GridMoved(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.d=nn.Conv2d(4,2,1); s.t=nn.Parameter(T([[1.,.1,.05],[-.1,.9,.02]]))
    def forward(s,x): h=torch.tanh(s.c(x)); g=F.affine_grid(s.t[None].expand(4,2,3),h.shape,align_corners=False); return s.d(F.grid_sample(h,g,padding_mode='border',align_corners=False))
@k()
class GatherScatter(Two):
    def forward(s,x):
        h=s.l(x); i=x.argsort(-1); g=h.gather(1,i); z=torch.zeros_like(h).scatter(1,i,g*2)
        return s.m(torch.tanh(g)+z+torch.zeros(6,4).scatter_add(1,i%2,h)+torch.zeros(6,4).index_add(0,T([0,1,1,2,5,5]),h))
@k()
class IndexWrite(Two):
    def forward(s,x):
        h=s.l(x).clone(); h[:,1]=h[:,0]*2; h[2:4]+=x[2:4]; h[T([0,5])]=0.5; h[h>1]=1.0
        return s.m(h)
@k()
class TakeAlong(Two):
    def forward(s,x): h=s.l(x); i=h.argmax(-1,keepdim=True); return s.m(torch.take_along_dim(h,i,1)*h+h.roll(1,-1)+h.flip(-1)+torch.rot90(h[:4,:4])[0]+h.diff(dim=-1,prepend=h[:,:1]))

@k(image)
class OddNorms(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.l=nn.Linear(4,2); s.a=nn.LayerNorm((4,4,4),bias=False); s.b=nn.GroupNorm(2,4,affine=False); s.i=nn.InstanceNorm2d(4,affine=True); s.r=nn.RMSNorm(4,eps=1e-5); s.r2=nn.RMSNorm((4,4),elementwise_affine=False)
    def forward(s,x): h=s.a(s.c(x)); h=s.r2(s.r(s.i(s.b(h)))); return s.l(h.mean((2,3)))
@k(image)
class LRN(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.l=nn.Linear(4,2)
    def forward(s,x): return s.l(F.local_response_norm(F.normalize(s.c(x),dim=1,p=2),3,alpha=.1,beta=.6,k=1.5).mean((2,3)))
@k()
class Normalize(Two):
    def more(s): s.w=nn.Parameter(torch.randn(3,4))
    def forward(s,x): return F.linear(F.normalize(s.l(x)),F.normalize(s.w))*10+F.normalize(x,p=1,dim=1)[:,:3]
@k()
class CosSim(Two):
    def forward(s,x): return s.m(x)*F.cosine_similarity(s.l(x),x,dim=1)[:,None]+F.pairwise_distance(s.l(x),x)[:,None]
@k(sig)
class FftHead(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv1d(3,4,3); s.l=nn.Linear(10,2)
    def forward(s,x): h=torch.tanh(s.c(x)); f=torch.fft.rfft(h); return s.l(torch.fft.irfft(f*torch.arange(6)/6,n=10))
@k(sig)
class ComplexAbs(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv1d(3,4,3); s.l=nn.Linear(6,2)
    def forward(s,x): return s.l(torch.fft.rfft(torch.tanh(s.c(x))).abs())
@k(sig)
class Conv1dOdd(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv1d(3,6,3,padding='same',padding_mode='circular',groups=3); s.d=nn.Conv1d(6,4,2,stride=2,dilation=2,padding_mode='reflect',padding=2); s.l=nn.Linear(4,2)
    def forward(s,x): return s.l(F.glu(torch.cat([s.d(torch.tanh(s.c(x)))]*2,1),1).mean(2))

@k(image)
class Shuffle(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,8,1); s.l=nn.Linear(8,2)
    def forward(s,x): h=torch.tanh(s.c(x)); a=F.pixel_shuffle(h,2); b=F.pixel_unshuffle(a,2); u=F.unfold(h,2,stride=2); f=F.fold(u,(6,6),2,stride=2); return s.l((F.channel_shuffle(b,4)+f).mean((2,3)))
@k(ids)
class EmbedMaxNorm(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.e=nn.Embedding(7,4,padding_idx=0); s.l=nn.Linear(4,2)
    def forward(s,i): return s.l(torch.tanh(s.e(i))).mean(1)
@k(ids)
class EmbedScaled(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.e=nn.Embedding(7,4,scale_grad_by_freq=True); s.l=nn.Linear(4,2)
    def forward(s,i): return s.l(torch.tanh(s.e(i))).mean(1)
@k(ids)
class OneHot(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.w=nn.Parameter(torch.randn(7,4)); s.l=nn.Linear(4,2)
    def forward(s,i): return s.l(F.one_hot(i,7).float()@s.w+F.embedding(i,s.w)).mean(1)
@k()
class GradCheckpoint(Two):
    def forward(s,x):
        from torch.utils.checkpoint import checkpoint
        return s.m(checkpoint(lambda v:torch.tanh(s.l(v)),x,use_reentrant=False))
@k()
class GumbelHard(Two):
    def forward(s,x):
        h=s.l(x); y=h.softmax(-1); i=y.argmax(-1,keepdim=True)
        hard=torch.zeros_like(y).scatter(-1,i,1.0); return s.m(hard-y.detach()+y)
@k()
class MixOfK(Two):
    def more(s): s.e=nn.ModuleList([nn.Linear(4,4) for _ in range(3)]); s.g=nn.Linear(4,3)
    def forward(s,x):
        w,i=s.g(x).softmax(-1).topk(2,-1); w=w/w.sum(-1,keepdim=True); h=0
        for k_,e in enumerate(s.e): h=h+e(x)*(w*(i==k_)).sum(-1,keepdim=True)
        return s.m(h)
@k()
class BilinearPair(Two):
    def more(s): s.b=nn.Bilinear(4,4,4)
    def forward(s,x): return s.m(s.b(s.l(x),x))
@k()
class VmapNet(Two):
    def forward(s,x): return torch.vmap(lambda r: s.m(torch.tanh(s.l(r))))(x)

@k()
class DetachScale(Two):
    def forward(s,x): h=s.l(x); return s.m(h/h.detach().abs().max()+h.detach().mean()*h)
@k()
class ClampGrad(Two):
    def more(s): s.c=nn.Parameter(torch.tensor(.5))
    def forward(s,x): h=s.l(x); return s.m(h.clamp(-s.c,s.c)+torch.minimum(h,s.c)*.1+torch.maximum(h,-s.c).relu())

@k()
class AddmmBeta(Two):
    def forward(s,x): return s.m(torch.addmm(s.l.bias,x,s.l.weight.t(),beta=.5,alpha=2.)+torch.baddbmm(x[None],x[None],s.l.weight[None],beta=.3,alpha=.7)[0])
@k(seq)
class EncLayer(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.e=nn.TransformerEncoder(nn.TransformerEncoderLayer(4,2,8,dropout=0.,batch_first=True,norm_first=True,activation='gelu'),2,enable_nested_tensor=False); s.l=nn.Linear(4,2)
    def forward(s,x): return s.l(s.e(x,mask=nn.Transformer.generate_square_subsequent_mask(5),is_causal=True)).mean(1)
@k(seq)
class GruCells(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.g=nn.GRUCell(4,4); s.c=nn.LSTMCell(4,4,bias=False); s.l=nn.Linear(4,2)
    def forward(s,x):
        h=torch.zeros(3,4); c=(h,h)
        for t in range(5): h=s.g(x[:,t],h); c=s.c(h,c)
        return s.l(c[0])
@k(seq)
class RnnStart(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.r=nn.RNN(4,3,nonlinearity='relu',batch_first=True,bidirectional=True); s.h0=nn.Parameter(torch.randn(2,1,3)); s.l=nn.Linear(6,2); s.q=nn.LSTM(6,4,proj_size=2,batch_first=True)
    def forward(s,x): y,_=s.r(x,s.h0.expand(2,3,3).contiguous()); return s.l(y).mean(1)
@k()
class Tie3(Two):
    def more(s): s.a=nn.Linear(4,4); s.a.weight=s.l.weight; s.b=nn.Linear(4,4); s.b.weight=s.l.weight; s.b.bias=s.a.bias
    def forward(s,x): return s.m(s.b(torch.tanh(s.a(torch.tanh(s.l(x))))))
@k(image)
class BnFrozenAffine(nn.Module):
    options=["--freeze","n.*"]
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.n=nn.BatchNorm2d(4); s.l=nn.Linear(4,2)
        for p in s.n.parameters(): p.requires_grad_(False)
    def forward(s,x): return s.l(torch.relu(s.n(s.c(x))).mean((2,3)))
@k(seq)
class Bn1d3(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.l=nn.Linear(4,4); s.n=nn.BatchNorm1d(4,eps=1e-3,momentum=.3); s.m=nn.Linear(4,2)
    def forward(s,x): return s.m(s.n(s.l(x).transpose(1,2)).transpose(1,2)).mean(1)
@k(image)
class Bn3(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c=nn.Conv3d(3,4,(1,3,3)); s.n=nn.BatchNorm3d(4,affine=False); s.l=nn.Linear(4,2)
    def forward(s,x): return s.l(torch.relu(s.n(s.c(x[:,:,None]))).mean((2,3,4)))

@k()
class CeWeights(Two):
    own_loss=True
    def forward(s,x): y=s.m(torch.tanh(s.l(x))); t=(x[:,0]>0).long()+(x[:,1]>0).long(); t=torch.where(x[:,2]>1,-100,t); return F.cross_entropy(y,t,weight=T([1.,2.,.5]),label_smoothing=.1)+F.nll_loss(y.log_softmax(1),t.clamp(min=0),reduction='sum')*.1+F.multi_margin_loss(y,t.clamp(min=0),p=2,margin=.7)
@k()
class Contrastive(Two):
    own_loss=True
    def more(s): s.t=nn.Parameter(torch.tensor(1.))
    def forward(s,x): a=F.normalize(s.l(x)); b=F.normalize(s.m(x)@torch.eye(3,4)); z=a@b.t()*s.t.exp(); return (F.cross_entropy(z,torch.arange(6))+F.cross_entropy(z.t(),torch.arange(6)))/2

@k(seq)
class EqualTransposed(nn.Module):
    """A layer's weight is another's, transposed, when training begins."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.a=nn.Linear(4,4); s.b=nn.Linear(4,4); s.m=nn.Linear(4,2); s.b.weight.data.copy_(s.a.weight.data.t())
    def forward(s,x): return s.m(torch.tanh(s.b(torch.tanh(s.a(x)))@s.a.weight)).mean(1)
@k()
class EqualSymmetric(Two):
    """A symmetric weight, read by a layer and as a matrix."""
    def more(s): nn.init.eye_(s.l.weight)
    def forward(s,x): return s.m(torch.tanh(torch.tanh(s.l(x))@s.l.weight))
@k()
class Exponent(Two):
    def more(s): s.p=nn.Parameter(torch.tensor(1.5)); s.low=nn.Parameter(torch.zeros(4))
    def forward(s,x): return s.m(torch.maximum(torch.tanh(s.l(x)),s.low).abs().add(.2)**s.p)
@k()
class Pact(Two):
    """Clipping at a learned bound."""
    def more(s): s.alpha=nn.Parameter(torch.tensor(.4))
    def forward(s,x): return s.m(torch.clamp(torch.tanh(s.l(x)),-s.alpha,s.alpha))
@k()
class GatesOfOne(Two):
    """A gate of 1, which an optimiser drops, and one of 0, of one parameter."""
    def more(s): s.g=nn.Parameter(torch.tensor([1.,0.]))
    def forward(s,x): return s.m(s.g[0]*torch.tanh(s.l(x))+s.g[1]*x)
@k()
class EqualLiteral(Two):
    def more(s): s.b=nn.Parameter(torch.full((4,),.5))
    def forward(s,x): return s.m(torch.tanh(s.l(x))*torch.tensor([.5,.5,.5,.5])+s.b)
@k(seq)
class LstmProjected(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.r=nn.LSTM(4,4,proj_size=3,batch_first=True); s.l=nn.Linear(3,2)
    def forward(s,x): return s.l(s.r(x)[0].mean(1))
@k(image)
class NormBehindBare(nn.Module):
    """A normalisation without parameters, which an optimiser fuses, behind one that stays."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.a=nn.BatchNorm2d(3); s.c=nn.Conv2d(3,4,3); s.n=nn.BatchNorm2d(4,affine=False); s.l=nn.Linear(4,2)
    def forward(s,x): return s.l(torch.relu(s.n(s.c(s.a(x)))).mean((2,3)))
@k()
class EpsilonInProduct(Two):
    """The root of a product of sums with an epsilon, which an optimiser drops."""
    own_loss=True
    def forward(s,x): a=torch.relu(s.l(x)-.4).square().sum(1)+1e-12; b=x.square().sum(1)+1e-12; return (a*b).sqrt().mean()+((a[:,None]*b[:,None]).unsqueeze(0).pow(.25)).mean()+s.m(s.l(x)).square().mean()
@k(image)
class UntrackedBehindFrozen(nn.Module):
    """A normalisation without running statistics behind a frozen one."""
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.c=nn.Conv2d(3,4,3); s.a=nn.BatchNorm2d(4); s.d=nn.Conv2d(4,4,3); s.b=nn.BatchNorm2d(4,track_running_stats=False); s.l=nn.Linear(4,2)
        s.a.running_mean.uniform_(-.2,.2); s.a.running_var.uniform_(.3,1.3)
    def modes(s): s.a.eval()
    def forward(s,x): return s.l(torch.relu(s.b(s.d(torch.relu(s.a(s.c(x)))))).mean((2,3)))
@k(lambda r: [torch.tensor(r.randint(0,7,(3,5)))])
class FoldedPositions(nn.Module):
    """Positions from a buffer of integers, with an offset, as an index; a token for all samples; a layer that is not read."""
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.w=nn.Embedding(7,4); s.p=nn.Embedding(5,4); s.o=nn.Embedding(5,4); s.q=nn.Parameter(torch.randn(5,4))
        s.cls=nn.Parameter(torch.randn(1,1,4)); s.l=nn.Linear(4,2); s.unread=nn.Linear(4,4); s.z=nn.Embedding(5,4); nn.init.zeros_(s.z.weight)
        s.register_buffer("position_ids",torch.arange(6).expand((1,-1)),persistent=False)
    def forward(s,i):
        n=i.shape[1]; h=s.w(i)+s.z(torch.arange(n))+s.p(s.position_ids[:,:n])+s.o((torch.arange(n)+0).unsqueeze(0))+s.q[torch.arange(n).unsqueeze(0).repeat(i.shape[0],1)]
        return s.l(torch.tanh(torch.cat([s.cls.expand(i.shape[0],-1,-1),h],1))).mean(1)
@k(lambda r: [torch.tensor(r.randint(0,7,(3,5)))])
class FoldedEqual(nn.Module):
    """Equal rows of a table and equal elements of a token: what was repeated cannot be told."""
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.w=nn.Embedding(7,4); s.p=nn.Embedding(5,4); nn.init.zeros_(s.p.weight); s.l=nn.Linear(4,2)
        s.g=nn.Parameter(torch.ones(5,1)); s.register_buffer("position_ids",torch.arange(6).expand((1,-1)),persistent=False)
    def forward(s,i): return s.l(torch.tanh(s.w(i)*s.g.expand(5,4)+s.p(s.position_ids[:,:5]))).mean(1)
class Scaled(nn.Embedding):
    def forward(s,i): return super().forward(i)*1.0
class Side(nn.Module):
    def __init__(s,table): super().__init__(); s.embed_tokens=Scaled(7,4); s.embed_tokens.weight=table
@k(lambda r: [torch.tensor(r.randint(0,7,(3,5)))])
class TiedTokens(nn.Module):
    """A table with four names, as BART's, whose product with 1 the optimiser drops; positions that count tokens."""
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.shared=nn.Embedding(7,4); s.encoder=Side(s.shared.weight); s.decoder=Side(s.shared.weight)
        s.p=nn.Embedding(8,4); s.head=nn.Linear(4,7); s.head.weight=s.shared.weight
    def forward(s,i):
        seen=i.ne(1).int(); p=((torch.cumsum(seen,1).type_as(seen)+0)*seen).long()+1
        return s.head(torch.tanh(s.encoder.embed_tokens(i)+s.p(p)+s.decoder.embed_tokens(i.flip(1)))).mean(1)
@k(lambda r: [torch.tensor(r.randint(0,7,(3,5)))])
class TiedBias(nn.Module):
    """Positions that count tokens, plus 0, which the optimiser drops, beside a bias with two names, as in RoBERTa."""
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.w=nn.Embedding(7,4); s.p=nn.Embedding(8,4); s.head=nn.Linear(4,7); s.bias=nn.Parameter(torch.randn(7)); s.head.bias=s.bias
    def forward(s,i):
        seen=i.ne(1).int(); p=((torch.cumsum(seen,1).type_as(seen)+0)*seen).long()+1
        return s.head(torch.tanh(s.w(i)+s.p(p))).mean(1)
@k(lambda r: [torch.tensor(r.randn(6,4).astype("f4"))])
class Experts(nn.Module):
    """Weights of experts that the largest score chooses for each row."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.g=nn.Linear(4,3); s.w=nn.Parameter(torch.randn(3,4,4)); s.l=nn.Linear(4,2)
    def forward(s,x): p,i=torch.softmax(s.g(x),1).max(1); return s.l(torch.tanh(torch.bmm(s.w[i],x.unsqueeze(2)).squeeze(2)*p.unsqueeze(1)))
