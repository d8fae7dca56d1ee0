"""torch's DistributedDataParallel on a pod: a small classifier of digits. Each process trains on its part of the examples.

    python examples/torch_ddp.py                                          # alone
    podrun --slice cpu-2x2 --simulate -- python examples/torch_ddp.py     # one process for each host

podrun sets the same variables as torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. On GPUs add
`launch.process_per=device` before the `--`.
"""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, BATCH_SIZE = 10, 128  # global batch size

if "RANK" not in os.environ:  # started without a launcher: a single process
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same initial parameters in all processes
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_of = nn.CrossEntropyLoss()

x, y = load_digits(return_X_y=True)
examples = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
sampler = DistributedSampler(examples, seed=0)
loader = DataLoader(examples, batch_size=BATCH_SIZE // world_size, sampler=sampler)

for epoch in range(1, EPOCHS + 1):
    sampler.set_epoch(epoch)
    total = torch.zeros((), device=device)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(model(inputs.to(device)), labels.to(device))
        loss.backward()  # averages the gradients of all processes
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}: loss {total.item() / len(loader) / world_size:.4f}", flush=True)

dist.destroy_process_group()
