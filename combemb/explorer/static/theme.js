// Not a module: it runs before the first paint, so that a page in the dark theme never flashes white.
document.documentElement.dataset.theme = localStorage.getItem("combemb-theme") || "system";
