"""What kind of device a tensor is on."""

from contmax._eager import device_type as device_type
