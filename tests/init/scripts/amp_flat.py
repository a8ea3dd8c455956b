# A script without functions: AMP, clipping, accumulation and a schedule by steps.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accumulation_steps = 4
epochs = 3
device = "cuda"

net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1)).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)
scaler = torch.cuda.amp.GradScaler()
criterion = nn.MSELoss()
data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
loader = DataLoader(data, batch_size=32, shuffle=True)

for epoch in range(epochs):
    for i, (x, y) in enumerate(loader):
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = criterion(net(x.cuda()), y.cuda()) / accumulation_steps
        scaler.scale(loss).backward()
        if (i + 1) % accumulation_steps == 0:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
            scaler.step(opt)
            scaler.update()
            sched.step()
            opt.zero_grad(set_to_none=True)
    print(f"epoch {epoch}: {loss.item()}")
