"""One file per area of the HTTP interface; each makes an APIRouter named `router`."""
