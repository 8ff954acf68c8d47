"""The only door to HDF5: what is in a shard, its raw words, and new shards that can be patched in place.

``inventory`` lists the datasets of a shard by object identity and refuses an incomplete one; ``ShardReader`` reads
raw words; ``create_shard`` makes an empty shard of a layout; ``region`` says where a box lies in the file.
No other package imports h5py or hdf5plugin.
"""

from .access import library
from .create import create_shard
from .inventory import Dataset, Inventory, Stamp, checkpoint_inventory, inventory, listed_by, shard_names, stamp_of
from .known import Inventories, stamped
from .place import region
from .reader import ShardReader

__all__ = [
    "Dataset",
    "Inventories",
    "Inventory",
    "ShardReader",
    "Stamp",
    "checkpoint_inventory",
    "create_shard",
    "inventory",
    "library",
    "listed_by",
    "region",
    "shard_names",
    "stamp_of",
    "stamped",
]
