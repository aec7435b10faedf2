export { h, render, Component } from "preact";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { h } from "preact";
import htm from "htm";
export const html = htm.bind(h);
