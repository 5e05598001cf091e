"use strict";
document.getElementById("toolbox").hidden = false;
